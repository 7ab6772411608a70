"""verify.py: which answers earn 1, which golds can be verified, custom rewards."""

import random
import textwrap
import time
from pathlib import Path

import pytest

import verify
from plumbing.errors import InputError
from tests.stress import fuzz_verifier
from verify import Verdict, Verifier, extract_boxed


def table(text: str) -> list[tuple[str, str]]:
    """Return (gold, answer) for the answers in each line, after their gold, three spaces apart."""
    rows = [line.split("   ") for line in text.strip().splitlines()]
    return [(gold, answer) for gold, *answers in rows for answer in answers]


RIGHT = table(r"""
12   12 \; \text{people}   12^{\mathrm{th}}   12th   12^{th}   12^\text{th}   4\binom{3}{2}   (3)(4)
50   50\%
50\%   0.5
7   7 \text{ apples}   7\text{ km}^2   m+n=7
2/3   0.666667   .666667   2:3
5   \{5\}   \boldsymbol{5}   5€   5 apples   5 cm^2   \text{5 cm}   [ABC]=5
5   5\ \text{kg} \cdot \text{m}/\text{s}^2   5\ \mathrm{m\,s^{-1}}   5\ \mathrm{m} \mathrm{s}^{-1}
(-\infty,0) \cup (0,\infty)   \mathbb{R} \setminus \{0\}   ℝ - \{0\}
\pm 4   4, -4
(-\infty, 0) \cup (1, \infty)   x < 0 \text{ or } x > 1   (-inf, 0) \cup (1, infinity)
\sqrt{8}   2\sqrt{2} \approx 2.83   2sqrt(2)   2*sqrt(2)
\begin{pmatrix} 1 \\ 2 \end{pmatrix}   \left(\begin{array}{c} 1 \\[4pt] 2 \end{array}\right)
x+y < 3   -2x-2y > -6
x=3, y=4   y=4, x=3
p=5,q=2;p=7,q=2   (7,2),(5,2)   p=7,q=2 \text{ or } p=5,q=2
52_8   52   52_{8}   N=52_8   (52)_8
AB   B \cdot A
1 \pm 12\pi   1 +/- 12pi   1+12*pi, 1-12pi
no   No   \text{No.}   \[\text{no}\]
864 \mbox{ inches}^2   864 square inches   864 sq in
0.1\overline{6}   1/6   0.1\bar6
\log_2 3   \log_{2}(3)   \frac{\ln 3}{\ln 2}   \ln 3/\ln 2
1e-5   0.00001   10^{-5}   1 \times 10^{-5}   1E-5   10⁻⁵
2e - 1   2e-1
xy \gamma E_1   \gamma \cdot E_1 xy   yxE_1\gamma
D   (D) (2,0)   \text{(D)}   \textbf{(D)}\ 12   \text{(D)}\ 12   D. 5   D) 5   D: 5
\text{(D)}   \text{D. red}
9:30 a.m.   9:30 AM   \text{9:30 AM}
9.8   9.8 \text{ m/s}^2   9.8 m/s^2   9.8\,\text{m/s^2}
60 mph   60 \text{ miles an hour}   60 miles per hour
\frac{1}{\Delta} \arctan 2   \Delta^{-1} \tan^{-1}(2)
\frac{\binom{3}{2}\binom{4}{2}}{\binom{7}{4}}   \frac{18}{35}
1   (2)\frac{1}{2}   \frac{4}{2}\frac{1}{2}
25 km   $25$ km
90^\circ   90 degrees   m\angle A = 90
\$12 \text{ per hour}   12   12 dollars   12 dollars per hour
x^2 \frac{3}{4}   \frac{3x^2}{4}
\sum_{k=1}^n k   \sum_{j=1}^{n} j
(3,1)   y=1,x=3   3,1   m=3,b=1   r=3, \theta=1
f(2) < f(1) < f(4)   f(4) > f(1) > f(2)
617   1,234/2
334/267   1 67/267
F_n = F_{n-1}+F_{n-2}   F_n=F_{n-2}+F_{n-1}
S_{\triangle ABC}=6   6
e^2 - 1   -1 + exp(2)
1, 2, \ldots, n   \{1, 2, \ldots, n\}
\frac{\sqrt{3}}{3} \approx 0.577   \frac{\sqrt{3}}{3}
(-\infty,3) \cup (3,\infty)   x \ne 3
5   f(-1)=5   P(X=2)=5   ab=5   \approx 5   5_{10}   5,   0.5*10^1   5 ft   5 sec   1[2+3]
(\pm 3,0)   (3,0),(-3,0)
\sqrt{xy}   \sqrt{x} \sqrt{y}
\frac{1}{2}\begin{pmatrix} 2 \\ 4 \end{pmatrix}   \begin{pmatrix} 1 \\ 2 \end{pmatrix}
x=k\pi   k\pi, k \in \mathbb{Z}   x = k\pi \text{ for all integers } k   k\pi \; (k \in \mathbb{Z})
n \equiv 1 \pmod{4}   n \equiv 1 \mod 4   1 \pmod 4   n ≡ 1 \; (\mathrm{mod}\ 4)
(1,1,1)   x=y=z=1   \Bigl(1,1,1\Bigr)
n=5k+2, k \ge 0   n=5k+2   5k+2, k \in \mathbb{Z}_{\ge 0}   n=5k+2 \text{ where } k \ge 0
n=5k+2, k \ge 0   n=5k+2, k \in \mathbb{N}   n=5k+2 \; (k \ge 0)
n=3k, k \in \mathbb{Z}, k>0   n=3k, k \ge 1   n=3k \text{ for positive integers } k   n=3k, k>0
g(x)=x^2, 0 \le x \le 3   x^2, x \in [0,3]   g(x)=x^2 \text{ for } 0 \le x \le 3
g(x)=x^3+c   g(x)=x^3+c, c \in \mathbb{R}   x^3+c \text{ where } c \text{ is a constant}
a_n=2n-1   a_n=2n-1, n \in \mathbb{N}   a_n=2n-1 \text{ for } n \ge 1
x=2m+n, m,n \in \mathbb{Z}   x=2m+n \text{ for integers } m, n
3<x<7   x>3 \text{ and } x<7   x<7 \land x>3   x>3, x<7   (3,\infty) \cap (-\infty,7)
x<2 \text{ or } x>6   x<2 \lor x>6   (6,\infty)\cup(-\infty,2)   \mathbb{R} \setminus [2,6]
(-\infty,-2)\cup(-2,2)\cup(2,\infty)   x \ne \pm 2   x \ne 2, -2   \{x \mid x \ne 2, x \ne -2\}
(-\infty,-2)\cup(-2,2)\cup(2,\infty)   \mathbb{R}-\{2,-2\}   x \notin \{-2,2\}
p \land q   q \wedge p
(x,y)=(1,2) \text{ or } (3,4)   (3,4), (1,2)
x=1 \text{ and } y=2   y=2, x=1   y=2 \land x=1
\sqrt3+3^{-300}   \frac{1}{3^{300}}+\frac{3}{\sqrt3}
0   \sqrt{3+2\sqrt2}-1-\sqrt2
|a|+|b|   |b|+|-a|
\sqrt{b^2n^2}   |bn|   |b||n|
\sqrt{\frac{a}{b}}   \frac{\sqrt{ab}}{b}
y=|x|   y-|-x|=0
\mathbf{A}\mathbf{B}   AB   \mathbf{AB}   \boldsymbol{A}\boldsymbol{B}
(AB)^{-1}C   B^{-1}A^{-1}C
(AB)^T   B^TA^T   B^\top A^\top
\mathbf{a}\cdot\mathbf{b}   \mathbf{b}\cdot\mathbf{a}
(f \circ g)(x)=9x^2   9x^2
a \times b   ba
\frac{3}{4}x   3/4x   3/4 x
y=\frac{3}{4}x+1   y=3/4x+1
3   \frac{3x}{x}   \frac{6ab}{2ab}
\frac{dv}{dt}=-kv   dv/dt = -kv   \frac{dv}{dt}+kv=0
0.125   12.5\%   \frac{1}{8}
44   44\%   44pct
\frac{200}{3}   66\frac23\%
4\%   4   0.04   1/25
35 \text{ m/s}   35   35 m/s   35 \text{ meters per second}   35 \text{ m s}^{-1}
21 \text{ tons}   21 ton   21
£21   21   21 pounds
\$21   21 dollars   21 USD   USD 21   US\$21
84 km/h   84   84 kilometers per hour   84 км/ч   84 \frac{\text{km}}{\text{h}}
6 \text{ people}   6 persons   6 \text{ tall people}
4 \text{ cats}, 9 \text{ dogs}   9 dogs, 4 cats   4, 9   4 \text{ cats and } 9 \text{ dogs}
30\% \text{ oak}, 70\% \text{ pine}   70% pine, 30% oak   30\%, 70\%
7 \text{ feet } 2 \text{ inches}   7 ft 2 in   7 feet and 2 inches
(2,7) \text{ cm}   (2 \text{ cm}, 7 \text{ cm})   (2,7)
8:30   8:30 \text{ p.m.}   08:30
5:8   5/8   0.625
2023-07-04   2023-7-4   2023/07/04
3^(1/5)   \sqrt[5]{3}   3**(1/5)   3^{0.2}
e^(-(x+1)^2)   e^{-(x+1)^2}
y^{\frac{2}{3}}   y^\frac{2}{3}   y^\frac23
5^\sqrt7   5^{\sqrt{7}}
u_\text{min} = 6   u_{min}=6   6
{{b}_{n}}={{3}^{n}}   b_n=3^n   3^n
{{\log }_{5}}7   \log_5 7
{{\left( x+2 \right)}^{2}}+{{y}^{2}}=9   (x+2)^2+y^2=9
17   17ml   17 mL   17miles   17元   17 公里   17 года   17°C   17℃   17 Å   17kΩ   Rs. 17   17 kWh
17 \text{ μm}   17\,\mu\text{m}   17µm
31.5^\circ C   31.5   31.5℃   31.5 degrees Celsius   31.5^\circ
C   C. A square   C: An old map   \text{C. I think}   \text{Answer: C}   Option (C)
C. A square   C
(2,0)   (D) (2,0)   \text{(D) }(2,0)
12   \textbf{(C) } 12   \text{(C) 12}
\text{(C) } 12   12   C
\\frac{2}{7}   2/7
(0, \\sqrt{3}]   (0, \sqrt{3}]
\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}   \begin{pmatrix} 1 \\ 2 \end{pmatrix}
60   3[5+[7+8]]   [2+4][3+7]
4[(x-b)^2+3]   4((x-b)^2+3)   4[[x-b]^2+3]
2/9   0.(2)   0.\dot2   0.\overline{2}   0.2̅
4/33   0.\dot{1}\dot{2}   0.(12)
11/4   2¾   2 ¾
3.4 \times 10^{-6}   3.4 x 10^{-6}   3.4×10⁻⁶   3.4e-6   3.4 \cdot 10^(-6)
45   ４５   ٤٥
\omega + \alpha   ω+α
\frac{d\omega}{dt}+a\omega=0   \frac{dω}{dt} = -aω   d\omega/dt=-a\omega
\ln|x|+c   \ln|-x|+c   c+\ln|x|
t=4 \text{ m}, u=6 \text{ s}   u=6 \text{ s}, t=4 \text{ m}   t=4, u=6
y^TBy   y^\top B y
2k\pi+1, k \in \mathbb{Z}   2n\pi+1, n \in \mathbb{Z}   2k\pi+1, k=0,\pm1,\pm2,\ldots
x^n, n=1,2,3,\ldots   x^n, n \ge 1   x^n \; (n=1,2,3,\dots)   x^n
\text{cats and dogs}   cats and dogs   \text{dogs and cats}   dogs and cats
\text{north or south}   south or north
\begin{cases} x=4 \\ y=7 \end{cases}   x=4, y=7   (4,7)
8 N   8 \text{ N}   8\mathrm{N}   8 newtons
4 \text{ h}   4 h   4h   4   4 hours
9 \Omega   9Ω   9 ohms   9
7 \frac{m}{s}   7 \text{ m/s}   7
B, D   BD   B and D   \text{D, B}
B. A line   B) A line   \text{(B) A line}   B - A line
II and III   \text{II and III}
u'' + 4u = 0   u''=-4u
x_1=2, x_2=-5   x=2 \text{ or } x=-5   x=-5, x=2
B \cap A \cap C   A ∩ B ∩ C
p \to q   p → q   p \Rightarrow q   p \implies q
n! \cdot 2^{300}   2^{300} n!
\text{H}_2\text{O}   \mathrm{H_2O}
\frac{\partial g}{\partial t}   ∂g/∂t
4^\circ 20'   4^\circ 20^{\prime}
18   \text{The answer is } 18   \text{The answer is 18}   \text{There are } 18 \text{ ways}
18   18 \checkmark   = 18   \therefore 18   {\color{blue} 18}   18 \; (\text{cm})   18 \hspace{1cm}
6   |z - w| = 6   E[X] = 6   x_1 + x_2 = 6   f(1)+f(2) = 6   \vec{a} \cdot \vec{b} = 6   \det A = 6
5   \log_2 32 = 5   (a+b)_{\min} = 5   \text{five}   5 \pmod 7
5   N \equiv 5 \pmod 7
3 \pmod 7   3
314   100\pi \approx 314
5\sqrt{2} \approx 7.07   7.07
1500000   1.5 \text{ million}   \text{1.5 million}
\$2 \text{ million}   \$2,000,000   2 \text{ million dollars}
\{2, 4\}   A \cap B = \{2, 4\}
\binom{2n}{n}   {2n \choose n}
\frac{3}{4}   {3 \over 4}
101_2   101_{\text{two}}
\text{no solution}   \text{There is no solution}   \emptyset   \text{No real solutions}
7   7 \text{ incorrect answers}
raT   rat
\text{DNE}   \text{does not exist}   \text{The limit does not exist}
\text{ellipse}   \text{an ellipse}   \text{Ellipse}
\begin{cases}x&x>0\\0&x<0\end{cases}   \begin{cases} x, & \text{if } x>0, \\ 0, & x<0. \end{cases}
(1,2)   \left\{ \begin{array}{l} x = 1 \\ y = 2 \end{array} \right.
\left\lfloor\frac{n^2}{4}\right\rfloor+1   1+\lfloor n^2/4\rfloor   1+⌊n²/4⌋
n-\lfloor\sqrt n\rfloor   n-\left\lfloor n^{1/2}\right\rfloor
\lfloor f(n)\rfloor   \left\lfloor f(n) \right\rfloor
\lfloor 10\pi\rfloor   31
(2,3)   A(2,3)
abc   a \cdot b \cdot c   c \cdot a \cdot b
\frac{3}{4}   3\over4
\frac13   \cos 2\alpha=\frac13   \tan(\alpha-\beta)=\frac13   \sin^2 A=\frac13
5   \max|z|=5   \lim_{x\to0}f(x)=5   \log_a b=5
F(x,y)=(x-1)(y-1)   F(x,y)=xy-x-y+1
a^{-kt}   \frac{1}{a^{kt}}   (a^k)^{-t}
120   5!=120   (5)!=120
\sin y   \operatorname{sin} y   \text{sin} y   \mathrm{sin}\,y
2\pi r   2\text{\pi} r
\arctan 3   \operatorname{arctan} 3   \text{arctan}(3)   arctan(3)   \operatorname{arctg} 3
\tan y   \tg y   \operatorname{tg} y   tg y
\cot y   \ctg y   \operatorname{ctg} y   \operatorname{cot} y
\sec y   \operatorname{sec} y   sec(y)
\tanh y   \text{tanh}(y)   \operatorname{tanh} y
gt   tg
18   \$18/\text{day}   \$18 \text{/day}   18/\text{hour}   18 \text{ / hour}
\$18/\text{hr}   18   \$18 per hour
20\%   \text{20\% loss}   \text{20 \% of the total}   20
100000   \$50,000 \times 2 = \$100,000   (60,000 + 140,000)/2 = 100,000
70000   \text{Profit: } \$70,000   \text{Profit}: 70,000   \text{Total (USD)} = 70000
(2,-1)   \text{Vertex: } (2,-1)
23   \text{The final answer is: } 23   \text{Jessica's age} = 23   \text{Jessica's age: } 23
23   \text{How many more} = 23   \text{Distance in km} = 23   \text{cost per day} = 23
g(x)=cx   g(x)=cx, c\in\mathbb{R}   g(x)=cx \text{ for any real } c
g(x)=ax^2+bx   g(x)=ax^2+bx, a,b\in\mathbb{R}
y=e^{2x}   y(x)=e^{2x}
y(x)=e^{2x}   y=e^{2x}
\frac16   \frac{1}{6}\ (\approx 0.167)   \frac{1}{6} \text{ (approximately } 0.167)
\frac12   \frac{1}{2}\text{ (or } 0.5)   \frac{1}{2} \text{ (or 0.5)}
x=3, y=-2   \begin{aligned}x&=3\\y&=-2\end{aligned}
x=3, y=-2   \begin{aligned} x &= 3, \\ y &= -2 \\ \end{aligned}
25   \frac{1}{4}=25\%   \frac{1}{4}=0.25=25\%
60^\circ   60º   60˚   60;
1010_2   1010_{\text{base } 2}   1010_{\text{base 2}}   1010_{\text{base two}}
x1   x1
n\cdot 2^{n-1}   n2^{n-1}
\frac{7!}{2!3!}   \frac{7!}{3!2!}
\text{Maximum: } 5   5
""")
WRONG = table(r"""
5   5 \text{ or six}   1=2=5   5 > 4   x > 5   5.0000001   ?   {}   5 theta   a+b=6   2a+b=5
5   5%%   5x/y   5 \text{ third}   5 hundred   5\text{b}   5,6   2a=10   x^{-1}=5   x=y=5   (5)_7
30   5 6   \underline{5}6
2,3   \{2,3\} \cup \{4\}
x=5   2x+3=13   x=5, x \ge 7
13   2x+3=13   12th   13^{th}+1   13^{t}
x > 3   2x+1 > 7   x = x > 3
10   10 \text{ k}   10 \text{ lakh}   10 twelfths   10 \text{ twentieth}   1.\overline{6}6
-2   \begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}
x+y=3   A=x+y=3   0=0   x+y=3=4
\emptyset   ,   \{\emptyset\}
x+y < 3   x+y > 3   -x-y < -3
\pi   3.14   \arctan(\tan(\frac{\pi}{2}))
2^T+I^2+\gamma   2+I^2+\gamma   2^T+I+\gamma   2^T+I^2+0.5772156649
3 < 5   1 < 2
\frac{1}{3^{80}}   \frac{1}{3^{81}}
\text{red}   \text{red or blue}   \text{reed}   \text{red} \text{ blue}
B   A, B, C, D   B \text{ C}
5 \text{ cm}   5 \text{ m}
18   \text{The answer is not } 18   \text{at most: } 18   \text{Either it is } 17 \text{ or } 18
5   8 \pmod 7   5 \text{ doubled}   5 \text{ at least}   5 \text{ mio}   4.9 \approx 5
(-\infty, 5)   |x| < 5   \tan x < 5
2   \log_2 8 = 2   |-3| = 2   2a_{\min} = 2   \log_3 x = 2
5   \text{Not exactly } 5   B - 5   2N \equiv 5 \pmod 7   x = 4.9 \approx 5   \text{negative: } 5
\text{Ann is 12}   \text{Bob is 12}
A \cap B = \{2\}   A \cup B = \{2\}
\text{A wins}   \text{wins}
(B) 12   (B) -12
(B) -12   (B) 12
x^n, n=1,2,3,\ldots   x^n, n=1,3,5,\ldots   x^n, n=2,4,6,\ldots
k\pi, k \in \mathbb{Z}   k\pi, k=0,\pm 2,\pm 4,\ldots
\lfloor \frac{N}{n} \rfloor   \lfloor \frac{n}{N} \rfloor
P(X>x)   P(x>X)
\Delta   \delta
\frac{1}{2}   \frac{1}{2}mvkt
2   2xyzw
2 \text{ million}   2 \text{ billion}   2
15 \mbox{ cm}^2   15 \text{ cm}
3{:}30 \text{ p.m.}   3{:}30 \text{ a.m.}
\frac{1}{23}   \frac123
52_8   42   52_9   52_{8}+1
2100   2, 100   2₁₀₀   2100_3
x_{12}   x_12
\mathbb{R}   \mathbb{R}^2
no   on   \text{yes}
x   [x]
[x]   x
2st   2
D   (E) (2,0)   (D) or (E)   (D), (E)   (D) E   (A) (D)   (D)+1   (D) - 5   (D)/2
36 km/h   36 \text{ m/s}   36 km/s   36 hours   36 \text{ h/km}
HT   TH
\Delta   \delta   D
8 \text{ minutes}   8 \%
\$25   25 km   25 \text{ km}
30^\circ   30 \text{ radians}
x=1, y=2   2, 1
(3,1)   m=1,b=3   b=1,m=3   x_2=3,x_1=1   z=3,x=1   c=3,b=1
1, 2, \ldots, n   2, 1, \ldots, n
1/3   1/3 \approx 11
\sqrt{2} \approx 1.41, \sqrt{3} \approx 1.73   \sqrt{2}
0,100/3   100/3
p=5,q=2;p=7,q=3   (5,3),(7,2)   p=5,q=3;p=7,q=2
\frac{\sqrt{3}}{3}   \frac{\sqrt{3}}{3} \approx 0.578
y=2x   x=2
(-1,3)   x=-1, x=3
-1 < x < 3   -1, 3   x=-1 \text{ or } x=3
y=3, x=2   (3,2)
|x-9|   9-x   x-9
\pm 1 \pm \sqrt{2}   1+\sqrt{2}, -1-\sqrt{2}
2\mathbf{i}-3\mathbf{j}   2\mathbf{i}-3\mathbf{u}
0.5   2^-0.5   0.5 \text{ repeating}
n \equiv 1 \pmod{4}   n=1   1   n \equiv 1 \pmod 2   n \not\equiv 1 \pmod 4
\ln(x \ln y)   \ln x \cdot \ln y
|x^2-1|   x^2-1   1-x^2   |x|^2-1
n=5k+2, k \ge 0   n=5k+2, k \ge 3   n=5k+2, k \in \mathbb{Z}   n=5k+2 \text{ where } k \ge 1
x=2k\pi, k \in \mathbb{Z}   x=2k\pi, k \in \mathbb{N}   x=2k\pi \text{ for all real numbers } k
x=2k\pi   x=2k\pi, k \in \mathbb{N}   x=2k\pi \text{ for all positive integers } k
g(x)=x^2, x \ge 2   g(x)=x^2, x \ge 0   g(x)=x^2, x>2   g(x)=x^2, x \in \mathbb{R}
5   5 \text{ for } k   5 \text{ where } x>2
3<x<7   x>3 \text{ or } x<7   x<3 \text{ and } x>7
x<2 \text{ or } x>6   x<2 \text{ and } x>6   2<x<6   x<2 \land x>6
(-\infty,-2)\cup(-2,2)\cup(2,\infty)   x \ne 2   x \ne 2 \text{ or } x \ne -2   x \ne \pm 3
p \land q   p \lor q
(p \land q) \lor r   (p \lor q) \land r   p \land (q \lor r)
x=1 \text{ and } y=2   x=1 \text{ or } y=2
\sqrt3+3^{-300}   \sqrt3
1   1-e^{-300}
5^{999}\sqrt{2}x+1   5^{999}\sqrt{2}x
y=5^{999}\sqrt{2}x+1   y=5^{999}\sqrt{2}x
|a|+|b|   |a+b|   a+b
\sqrt{b^2n^2}   bn   b|n|
|x+70|   x+70
|x-1|+|x-2|   2x-3   1
y=|x|   y=x
\mathbf{A}\mathbf{B}   \mathbf{B}\mathbf{A}   BA
C^{-1}D   DC^{-1}   D   CD^{-1}
Q^{-1}BQ   B   QBQ^{-1}
AB-BA   0   BA-AB
\vec{u} \times \vec{v}   \vec{u} \cdot \vec{v}   \vec{v} \times \vec{u}
\nabla \times G   \nabla \cdot G   \nabla G
g \circ h   h \circ g   gh
\frac{3}{4}x   4/3x   3/5x
3   3+x-x   \frac{3x}{y}
\frac{dv}{dt}=-kv   \frac{dv}{dt}=kv   \frac{du}{dt}=-kv
\sum_{k=1}^{n} k   \prod_{n=1}^{2000} (n^2+1)   \sum_{k=1}^{10^9} k
0.25   0.25\%   \frac14\%
5/8   0.625\%   5/8\%
7/2   3.5\%
0.4\%   0.4
35 \text{ m/s}   35 \text{ m}   35 \text{ s}   35 \text{ m/s}^2   35 \text{ ft/s}
84 km/h   84 km   84 \text{ h}
21 \text{ tons}   21 \text{ kg}   21 gallons
£21   \$21   €21
21 \text{ N/m}   21 \text{ N}
6 \text{ red pens}   6 \text{ blue pens}   6 \text{ hours}
4 \text{ cats}, 9 \text{ dogs}   9 \text{ cats}, 4 \text{ dogs}   9, 4   4 dogs, 9 cats
30\% \text{ oak}, 70\% \text{ pine}   70% oak, 30% pine
7 \text{ feet } 2 \text{ inches}   2 \text{ feet } 7 \text{ inches}   7   9
(2,7) \text{ cm}   (2,7) \text{ m}
8:30   4/15   8/30
18   18 \text{ cubed}   18 \text{ dozen}
5/12   10:24
2023-07-04   2012   2023-04-07
2/9   0.(3)
31.5^\circ C   31.5^\circ F
17   17 squared   17x   17 x   17mgh   17sinx   17万   17 тысяч   17 tausend   17abcd   17ω
C   C. A or B   A. C   \text{Answer: B}   C. D   Answer: B or C
\\frac{2}{7}   27   \frac{7}{2}
\frac{dy}{dx}   \frac{y}{x}   1
y^{\frac{2}{3}}   y^\frac{3}{2}
\ln|x|+c   \ln x+c
\frac{\pi}{5}   \frac{\pi}{5}^\circ
t=4 \text{ m}, u=6 \text{ s}   t=4 \text{ s}, u=6 \text{ m}   t=6, u=4
y^TBy   yBy^T
P\Lambda P^T   P^T\Lambda P
K^{-1}L   L/K   \frac{L}{K}
(B^TB)^{-1}B^Tc   B^{-1}c   c/B
2k\pi+1, k \in \mathbb{Z}   2n\pi+1, n \in \mathbb{N}   2k\pi+1, k=0,1,2,\ldots
\text{north or south}   north and south   north, south   north
\text{cats and dogs}   cats or dogs   cats
50 \text{ ms}   50 \text{ m}   50 \text{ s}
8 N   8 J   8 \text{ kg}
4 \text{ h}   4m   4x   4 s
B, D   B   B or D   B, C, D
B. A line   B. A ray   C. A line
u'' + 4u = 0   u'+4u=0   u+4u=0   u''=4u
x_1=2, x_2=-5   x=2, x=5   y=2, y=-5   x_1=-5, x_2=2
p \to q   q \to p   p \leftrightarrow q
\lfloor n/2\rfloor   n/2   \lceil n/2\rceil   \lfloor(n+1)/2\rfloor   \lfloor n/3\rfloor
\lfloor n^2/4\rfloor   \lfloor n^2/5\rfloor   \lfloor(n^2+1)/4\rfloor
\lceil n^2/4\rceil   \lfloor n^2/4\rfloor+1
\lfloor n/100\rfloor   \lfloor n/50\rfloor
\lfloor n/5\rfloor+\lfloor n/25\rfloor+\lfloor n/125\rfloor   \lfloor n/5\rfloor+\lfloor n/25\rfloor
\lfloor \log_2 n\rfloor+1   \lceil \log_2 n\rceil
\lfloor n/3\rfloor+\lfloor m/3\rfloor   \lceil n/3\rceil+\lceil m/3\rceil-2
31   \lfloor 10\pi\rfloor
A(2,3)   B(2,3)   A(3,2)   (2,3)
T(x,y)=(y,x)   T(y,x)=(y,x)
(2,3)+(1,2)   A(2,3)+(1,2)
abc   a \cdot b   a \cdot b \cdot b   acb
BAC   A \cdot B \cdot C
5   3\log_a b=5   \lim_{x\to0}f(x)=4   \max f(x)+2=5   \max 3=5   \lim_{x\to0}2f(x)+1=5
\frac12   \cos(2x+1)=\frac12   \cos(\pi)=\frac12
\frac{7}{4}   1+3\over4
x^{3/4}   x^3\over4
120   5!=121   119!=120
\tan y   \ctg y   \operatorname{cot} y   \operatorname{arctg} y
\$18/\text{hr}   \$18/\text{day}
18 \text{ hours}   18/\text{hour}   18 \text{/hour}
18   18/\text{five}
20\% \text{ increase}   \text{20\% decrease}   \text{2\% increase}
100000   \$50,000 \times 3 = \$100,000   (100,000) = (100,000)
200   100,200=300
(2,-1)   \text{Vertex: } (2,1)
23   \text{at least: } 23   \text{less than: } 23   \text{twice: } 23   \text{Ann or Bob: } 23
5   \text{approximately: } 5   \text{excluding: } 5   \text{multiples of: } 5   \text{Loss: } 5
kx, k \in \mathbb{R}, k \ne 0   kx
23   \text{Not Jessica's age} = 23   \text{thousands: } 23
23   \text{at least} = 23   \text{more than} = 23   \text{half} = 23   \text{Ann or Bob} = 23
5 \text{ m}   \text{Length (km)} = 5   \text{Length in km: } 5
\text{Ann: } 23   \text{Bob: } 23
g(x)=cx   g(x)=cx, c>0   g(x)=cx, c\in\mathbb{Q}
y=e^{2x}   y(x)=e^{3x}   x(y)=e^{2x}
y=5   y(x)=5x
\frac16   \frac{1}{6}\ (\approx 0.18)   \frac{1}{6} \text{ (or } 0.2)
x=3, y=-2   \begin{aligned}x&=-2\\y&=3\end{aligned}
8   \begin{aligned}x&=3\\y&=8\end{aligned}   \begin{aligned}x&=3+4\\&=8\end{aligned}
25   \frac{1}{3}=25\%   \frac{25}{4}=25\%   \frac{1}{4}=26\%   \frac{1}{4}=0.25
1010_2   1010_{\text{base } 3}
2^{2n}   2^{2n1}
\frac{a}{b}   \frac{a}{b}1
2020!   2020!1
""")
NUMBERS = fuzz_verifier.draw_numbers(random.Random(0))
TEMPLATES = [(RIGHT, gold, answer) for gold, right, _ in fuzz_verifier.cases() for answer in right]
TEMPLATES += [(WRONG, gold, answer) for gold, _, wrong in fuzz_verifier.cases() for answer in wrong]
TEMPLATES += [(WRONG, "«n»", answer) for answer in fuzz_verifier.choices(fuzz_verifier.HACKS)]
for cases, *texts in TEMPLATES:
    cases.append(tuple(fuzz_verifier.fill(text, NUMBERS) for text in texts))
CORRECT, WRONG_ANSWER = Verdict(1.0, "correct"), Verdict(0.0, "wrong")


def box(answer: str) -> str:
    return rf"We compute and find \boxed{{{answer}}}."


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as running:
        yield running


def test_extract_boxed_returns_the_last_box_if_it_is_closed():
    boxes = {r"\boxed{1} then \boxed{2}": "2", r"\boxed{3 \boxed{4}}": "4", r"\boxed {5}": "5"}
    boxes |= {r"\boxed{\frac{1}{2}}": r"\frac{1}{2}", r"\boxed{\{1\}}": r"\{1\}"}
    boxes |= {r"\boxed{5} in a \boxed": "5", "{" * 100_000 + r"\boxed{7}" + "}" * 100_000: "7"}
    without = ["5", r"\boxed{}", r"\boxed{ }", r"\boxed{1\}", r"\boxed 5", r"\boxed" * 20_000]
    boxes |= dict.fromkeys([*without, r"\boxed{1} and \boxed{2"])
    assert {text: extract_boxed(text) for text in boxes} == boxes


THINKING = {
    r"<think>\boxed{7}</think> It is 9.": None,
    r"<think>Perhaps \boxed{7}, or": None,
    r"so \boxed{7}?</think> It is \boxed{9}.": "9",
    r"<Thinking>\boxed{7}</Thinking> It is 9.": None,
    r"<|channel|>analysis<|message|>\boxed{7}<|end|><|channel|>final<|message|>It is 9": None,
    r"<think>in <think> tags \boxed{7}</think>\boxed{9}": "9",
    r"<seed:think>\boxed{7}</seed:think> It is 9.": None,
    r"<|start_think|>\boxed{7}<|end_think|> It is 9.": None,
    r"|begin_of_thought| \boxed{7} |end_of_thought| \boxed{9}": "9",
    r"\boxed{9} <think>\boxed{7}</think>": "9",
    r"I think \boxed{9}": "9",
}


@pytest.mark.parametrize(("text", "box"), THINKING.items())
def test_a_box_inside_thinking_does_not_count(text, box):
    assert extract_boxed(text) == box


def test_right_answers_earn_1_and_wrong_ones_and_guesses_0(verifier):
    """In any order, on any number of workers, which cache what they have parsed."""
    expected = dict.fromkeys(RIGHT, CORRECT) | dict.fromkeys(WRONG, WRONG_ANSWER)
    cases = random.Random(0).sample([*expected], len(expected))
    golds, answers = zip(*cases, strict=True)
    verdicts = zip(cases, verifier.grade([*map(box, answers)], [*golds]), strict=True)
    assert [case for case, verdict in verdicts if verdict != expected[case]] == []


def test_only_the_box_counts(verifier):
    long = box("1+" * 1500 + "1")
    completions = ["The answer is 5.", r"\boxed{5} no, \boxed{6}", long, "5 " * 50_000 + box("5")]
    verdicts = verifier.grade(completions, ["5"] * 4)
    assert [v.status for v in verdicts] == ["no_box", "wrong", "too_long", "correct"]
    assert [v.reward for v in verdicts] == [0, 0, 0, 1]


PARTS = table(r"""
3, 5, 8   $\boxed{3}$, $\boxed{5}$, $\boxed{8}$   \(\boxed{3}\), \(\boxed{5}\) and \(\boxed{8}\).
x=1, y=2   $\boxed{x=1}$ and $\boxed{y=2}$   $x=\boxed{1}$, $y=\boxed{2}$
x=1, y=2   2x=\boxed{2}, x=\boxed{1}, y=\boxed{2}   \boxed{} x=\boxed{1}, y=\boxed{2}
x=1, y=2   **x = \boxed{1}, y = \boxed{2}**   - x = \boxed{1}, y = \boxed{2}
x, b   $\boxed{x}$ and $\boxed{b}$
x<1 or x>4   \boxed{x<1} or \boxed{x>4}
3/4   $\boxed{\frac34}$ or $\boxed{0.75}$
3   \boxed{3}, \boxed{3}   \boxed{4} $\boxed{3}$   \boxed{4}. So \boxed{3}
""")
OTHER_PARTS = table(r"""
3, 5, 8   $\boxed{5}$, $\boxed{8}$   \boxed{3}, \boxed{5}. Then \boxed{8}
3, 5, 8   \boxed{1}, \boxed{3}, \boxed{5}, \boxed{8}
x=1, y=2   $x=\boxed{2}$ and $y=\boxed{1}$   2x=\boxed{1}, y=\boxed{2}   -x=\boxed{1}, y=\boxed{2}
x=1, y=2   2 x=\boxed{1}, y=\boxed{2}   y - x=\boxed{1}, y=\boxed{2}
(1, 4)   \boxed{x>1} or \boxed{x<4}
3, 8   (a) \boxed{8} (b) \boxed{3}
3   \boxed{4} or \boxed{3}   \boxed{4}, \boxed{3}   $x=\boxed{4}$ and $x=\boxed{3}$
1, 2   \boxed{3} <think> \boxed{1}, \boxed{2}
12   \boxed{1} \boxed{2}
""")


def test_an_answer_has_at_most_12_boxes():
    boxes = [f"\\boxed{{{i}}}" for i in range(13)]
    assert verify.read_answers(", ".join(boxes[1:])) == ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"]
    assert verify.read_answers(", ".join(boxes)) == ["12"]


def test_boxes_of_one_answer_are_less_than_60_characters_apart():
    """The brace that closes the first and the comma are two of them."""
    near, far = (rf"\boxed{{1}},{' ' * n}\boxed{{2}}" for n in (57, 58))
    assert verify.read_answers(near) == ["1, 2"]
    assert verify.read_answers(far) == ["2"]


def test_golds_and_answers_of_more_than_2000_characters_are_too_long(verifier):
    longest, longer = "7" * 2000, "7" * 2001
    verdicts = verifier.grade([box(longest), box("7"), box(longer)], [longest, longer, "7"])
    assert [v.status for v in verdicts] == ["correct", "too_long", "too_long"]


@pytest.mark.parametrize(("link", "status"), [(", ", "too_long"), (" ", "wrong")])
def test_joined_boxes_of_more_than_2000_characters_are_not_compared(verifier, link, status):
    """3.00… and 5.00… are 3, 5. Without a comma the last box is an answer too, but a wrong one."""
    zeros = "0" * 1000
    completion = rf"\boxed{{3.{zeros}}}{link}\boxed{{5.{zeros}}}"
    [verdict] = verifier.grade([completion], ["3, 5"])
    assert verdict.status == status


def test_each_part_may_have_a_box(verifier):
    golds, completions = zip(*PARTS, *OTHER_PARTS, strict=True)
    expected = [CORRECT] * len(PARTS) + [WRONG_ANSWER] * len(OTHER_PARTS)
    assert verifier.grade([*completions], [*golds]) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["3"], [3]), r"golds\[0\] is 3, a int: must be a str"),
        ((["3", None], ["3", "4"]), r"completions\[1\] is None"),
        ((["3"], [b"3"]), r"golds\[0\] is b'3', a bytes"),
        (("3", ["3"]), "completions is a str: must be a list of str"),
        ((["3"], ["3"], ["km"]), r"extras\[0\] is 'km', a str: must be a dict"),
    ],
)
def test_an_argument_that_is_no_text_is_a_type_error(verifier, arguments, message):
    with pytest.raises(TypeError, match=message):
        verifier.grade(*arguments)


def test_lists_of_different_length_are_a_value_error(verifier):
    with pytest.raises(ValueError, match="lists differ in length"):
        verifier.grade(["3", "4"], ["3"])


def test_a_gold_is_valid_if_it_is_understood_and_equivalent_to_itself(verifier):
    good = [gold for gold, _ in RIGHT]
    bad = ["", " ", r"\frac{1}{", "1+", "}", r"\frac{1}{0}", "?", "5" * 3000]
    assert verifier.check_golds(good) == [True] * len(good)
    assert verifier.check_golds(bad) == [False] * len(bad)
    assert verify.check_gold("7") is True


TOWERS = [fuzz_verifier.fill(t, NUMBERS) for t in fuzz_verifier.choices(fuzz_verifier.TOWERS)]
HOSTILE = [(gold, tower) for gold in ("x+7", r"\sum_{k=1}^n k") for tower in TOWERS]
HOSTILE += [
    (r"\lfloor n/2\rfloor", rf"\lfloor n/2\rfloor+0*\lfloor\sqrt n*10^{{{n}}}\rfloor")
    for n in (300, 3000)
]
HOSTILE += [("7+8e^{-kt}", "7+8x^{-kt}"), ("a^{-kt}", "a^{kt}"), ("a^{-n^2}", "a^{n^2}")]
HOSTILE += [("x+7", text * 100 + "x") for text in ("x^", "|x|", "x^2+")]
HOSTILE += [("x+7", left * 12 + "x" + right * 12) for left, right in ("()", "{}", (r"\sin(", ")"))]


@pytest.mark.parametrize(("gold", "answer"), HOSTILE)
def test_hostile_answers_are_wrong_before_they_take_long(gold, answer):
    start = time.process_time()
    assert not verify.compare(gold, answer)
    assert time.process_time() - start < 1.5


def reward_file(folder: Path, body: str) -> str:
    """Write a custom reward of these lines, which returns 1 if they return nothing."""
    path = folder / "custom.py"
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    path.write_text(head + textwrap.indent(f"{body}\nreturn 1\n", "    "))
    return str(path)


def test_a_custom_reward_gets_what_verl_passes_and_needs_no_box(tmp_path):
    reward = reward_file(
        tmp_path,
        "right = (solution_str, data_source, extra_info) == (ground_truth, 'a', {'unit': 'km'})\n"
        "return {'score': float(right), 'other': 0.5} if extra_info else data_source == ''",
    )
    extras = [{"data_source": "a", "extra_info": {"unit": unit}} for unit in ("km", "km", "m")]
    with Verifier(reward=f"{reward}:compute_score") as verifier:
        assert verifier.grade(["5"], ["5"]) == [CORRECT]
        verdicts = verifier.grade(["5", "6", "5"], ["5"] * 3, extras)
    assert verdicts == [CORRECT, WRONG_ANSWER, WRONG_ANSWER]


LIMITED = {  # the reward: its limit, the status
    "while True: pass": ({"cpu_seconds": 0.3}, "timeout"),
    "bytearray(2**28)": ({"memory_bytes": 2**27}, "memory"),
}


@pytest.mark.parametrize("body", LIMITED)
def test_a_custom_reward_may_exceed_its_limits(tmp_path, body):
    limit, status = LIMITED[body]
    with Verifier(workers=1, reward=reward_file(tmp_path, body), **limit) as verifier:
        assert verifier.grade(["1"], ["1"]) == [Verdict(0.0, status)]


def test_the_workers_get_the_limits():
    pool = Verifier(workers=5, cpu_seconds=0.3, wall_seconds=7, memory_bytes=99).pool
    assert pool.size == 5
    assert pool.wall_seconds == 7
    assert pool.command[-3:] == ["0.3", "99", ""]  # no custom reward


FAILURES = {
    "return 0.5": "returned 0.5, and must return 0 or 1",
    "return None": "returned None",
    "return {'reward': 1}": "raised KeyError: 'score'",
    r"raise ValueError('two\nlines')": "raised ValueError: two lines",
    "raise ValueError('🎲' * 999)": "raised ValueError: 🎲",
    "raise SystemExit(3)": "raised SystemExit: 3",
}


@pytest.mark.parametrize(("body", "problem"), FAILURES.items())
def test_a_custom_reward_that_fails_is_an_error_of_one_line(tmp_path, body, problem):
    reward = reward_file(tmp_path, body)
    message = rf"\A--reward {reward}: it {problem}.*\Z"
    with Verifier(1, reward=reward) as verifier, pytest.raises(InputError, match=message):
        verifier.grade(["1"], ["1"])


def test_a_custom_reward_that_gives_1_to_none_of_16_golds_is_an_error(tmp_path):
    reward = reward_file(tmp_path, "if ground_truth == 'bad': return 0")
    with Verifier(workers=1, reward=reward) as verifier:
        assert verifier.check_golds(["bad"] * 15, dataset="train") == [False] * 15
        assert verifier.check_golds(["good", *["bad"] * 64], dataset="val")[0]
        with pytest.raises(InputError, match=r"boxed{bad} does not earn 1, nor any other gold"):
            verifier.check_golds(["bad"], dataset="train")
