"""The prompts of tests/golden/model.json: prose, code, copying, chat, other scripts, and a long one."""

PROSE = """The lighthouse keeper had counted ships for thirty-one years, and on the last evening of the
season he counted none. The sea lay flat as slate. He wound the clockwork that turned the lamp, wrote
the hour in his book, and sat down beside the stove with a cup of tea that he forgot to drink. Some
time after midnight a sound came up the stairs, a slow and patient knocking, as if"""

CODE = '''#include <stdio.h>
#include <stdlib.h>

/* A stack of integers that grows when it is full. */
typedef struct stack { int *items; size_t count, capacity; } stack;

static int stack_push(stack *s, int value) {
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 16;
        int *items = realloc(s->items, capacity * sizeof *items);
        if (!items) return 0;
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->count++] = value;
    return 1;
}

static int stack_pop(stack *s, int *value) {
'''

ITEMS = ["red apples, 12 at 0.45", "brown bread, 2 at 3.20", "goat cheese, 1 at 6.75", "black olives, 3 at 2.10",
         "sea salt, 1 at 1.95", "green tea, 4 at 4.40", "dark chocolate, 5 at 2.85", "white beans, 6 at 1.15"]

COPY = "Shopping list:\n" + "".join(f"{i + 1}. {item}\n" for i, item in enumerate(ITEMS)) + \
    "\nThe same list once more, unchanged:\n" + "".join(f"{i + 1}. {item}\n" for i, item in enumerate(ITEMS[:4]))

CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhy is the sky blue at noon and red at sunset? Answer in two sentences.<|im_end|>\n"
        "<|im_start|>assistant\n")

SCRIPTS = ("Das Café in der Größe eines Schuhkartons öffnet um 7:30 Uhr; ein Espresso kostet 2,40 €.\r\n"
           "Le garçon naïf a mangé 12 crêpes à l'été 1998.\n\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002"
           "\u4f60\u597d\uff0c\u4e16\u754c\uff01\n\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!\u00a0\U0001f44d\U0001f3fd "
           "\U0001f468\u200d\U0001f469\u200d\U0001f467\tEnd of the list: one, two, three,")

PLACES = ["the harbour", "the old mill", "the market square", "the glass factory", "the botanical garden",
          "the railway depot", "the observatory", "the public library"]
KEEPERS = ["Marta Lind", "Jonas Okafor", "Priya Raman", "Tomas Vega", "Aiko Mori", "Elif Kaya", "Sam Whitlock",
           "Nadia Petrova"]
CODES = ["7413", "2098", "5560", "8127", "3349", "6671", "1904", "4785"]

LONG = "A register of keys\n\n" + "".join(
    f"The key of {place} is kept by {keeper}. It has the number {code} stamped on its bow, and it hangs on hook "
    f"{i + 1} behind the door. Whoever borrows it signs the book, says when it will come back, and leaves a coin in "
    f"the tin. Last year it was borrowed {3 * i + 5} times and lost {i % 3} times.\n\n"
    for i, (place, keeper, code) in enumerate(zip(PLACES, KEEPERS, CODES))) + (
    "The rules were written down by the first clerk, who did not trust people but liked them. He wrote that a key is a "
    "promise made of metal, that a lost key should be told of before supper, and that nobody should be ashamed of a "
    "mistake which they report themselves. The clerks after him added little: a second tin, a lamp over the hooks, and "
    "a list of the numbers, which stands here again so that it can be checked against the hooks every spring.\n\n"
    "Numbers of the keys:\n") + "".join(
    f"- {place}: {code}, kept by {keeper}\n" for place, keeper, code in list(zip(PLACES, KEEPERS, CODES))[:5]) + \
    "- the railway depot:"

PROMPTS = {"prose": PROSE.replace("\n", " "), "code": CODE, "copy": COPY, "chat": CHAT, "scripts": SCRIPTS, "long": LONG}
