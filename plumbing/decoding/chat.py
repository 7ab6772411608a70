"""What a chat template makes of a conversation: the prompt, and the token that ends an answer.

Nothing depends on a model's name: the template is asked, by a conversation of which we know the
text.
"""

# For chat templates that show the date: the same on all ranks, and after a resume.
FIXED_DATE = "{% macro strftime_now(format) %}01 Jan 2026{% endmacro %}"
# All that a problem may hold and a template may change: cases, signs of HTML, blank lines.
PROBE = "".join(map(chr, range(33, 127))) + " a  b\tc\n\nd\n e"
# Turns that no template changes, and none has in its own text.
ANSWER, REPLY = "2718281828459045", "3141592653589793"


def render(tokenizer, turns: list[str], prompt: bool) -> str:
    """Return a conversation as text, in which user and assistant take turns.

    prompt: end it with what the template puts before an answer. Raises any error, as a template is
    a program."""
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return tokenizer.apply_chat_template(
        messages,
        chat_template=FIXED_DATE + tokenizer.get_chat_template(),
        tokenize=False,
        add_generation_prompt=prompt,
    )


def after(prompt: str, content: str) -> str:
    """Return what a rendered prompt has after the user's text: the beginning of the answer.

    Raises ValueError unless the text is in the prompt, but for blanks around it. A template that
    takes a list of parts skips a text; others may shorten it, or change its letters."""
    _, kept, rest = prompt.rpartition(content.strip())
    if not kept:
        raise ValueError(
            "its chat template leaves out the problem's text or changes it: does it take a list of "
            "parts? Replace the template, or drop --chat_template"
        )
    return rest


def end_of_turn(tokenizer, stop_ids: list[int]) -> int | None:
    """Return the token that ends an assistant's turn in the chat template, None if there is no
    template, if it has no such token, or if the turn ends in one of `stop_ids`.

    It is the first added token after the answer. Where a conversation that ends with an answer has
    none, a template may end the turn by the token that begins the user's next one."""
    if not tokenizer.chat_template:
        return None
    added = {token for token, piece in tokenizer.added_tokens_decoder.items() if str(piece).strip()}
    for turns in (["1", ANSWER], ["1", ANSWER, REPLY]):
        try:
            text = render(tokenizer, turns, prompt=False)
        except Exception:  # a program, which may allow no answer, or none at the end
            continue
        _, _, rest = text.partition(ANSWER)
        end, _, _ = rest.partition(REPLY)
        ids = tokenizer(end, add_special_tokens=False).input_ids
        if tokenizer.unk_token and tokenizer.unk_token not in end:
            # It stands for text that the tokenizer does not know, such as a line break.
            ids = [token for token in ids if token != tokenizer.unk_token_id]
        ends = [token for token in ids if token in added]
        if ends:
            return None if {*ends} & {*stop_ids} else ends[0]
    return None
