"""Writes tests/golden/chat.json: conversations as Jinja2 renders the chat templates of families of
models. The templates here are short ones of each family; FOLDER/NAME.jinja instead takes published
ones, as FOLDER/NAME.json the output.

    pip install jinja2
    python3 tests/ref/make_chat_goldens.py [FOLDER]"""
import json
import os
import sys

import jinja2
import jinja2.ext

CHATML = "<|im_start|> <|im_end|>".split()
LLAMA = "<|start_header_id|> <|end_header_id|> <|eot_id|>".split()
PHI = "<|system|> <|user|> <|assistant|> <|end|>".split()
GEMMA = "<start_of_turn> <end_of_turn>".split()
LLAMA2 = "<s> </s>".split()
MISTRAL = "</s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]".split()
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- else %}
        {{- 'You are Q. You help.' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}{{- "</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
DEFAULT    {%- endif %}
{%- endif %}
"""
GEMMA_LOOP = """{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""
MISTRAL_LOOP = """{{- bos_token }}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is defined and tools is not none and (message == loop_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.WHICH and system_message is defined %}
            {{- "OPEN" + system_message + "\\n\\n" + message["content"] + "CLOSE" }}
        {%- else %}
            {{- "OPEN" + message["content"] + "CLOSE" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- ANSWER + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""
SYSTEM_PROMPT = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- 'OPEN' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'user' %}
        {{- 'INST' + message['content'] + '[/INST]' }}
    {%- else %}
        {{- ANSWER + eos_token }}
    {%- endif %}
{%- endfor %}
"""
PLAIN_TURNS = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
               "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
               "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
SMALL = """DEFAULT
{{- bos_token }}

{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set system_message = messages[0]['content'] %}
    {%- else %}
        {%- set system_message = messages[0]['content'][0]['text'] %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}

{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {{- block['text'] if block['type'] == 'text' else '[IMG]' }}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
MINISTRAL = """{#- What is said where a conversation has no system message. #}
{%- set default_system_message = 'DEFAULT' %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- '[SYSTEM_PROMPT]' -}}
    {%- if messages[0]['content'] is string %}
        {{- messages[0]['content'] -}}
    {%- else %}
        {%- for block in messages[0]['content'] %}
            {{- block['text'] }}
        {%- endfor %}
    {%- endif %}
    {{- '[/SYSTEM_PROMPT]' -}}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
    {%- if default_system_message != '' %}
        {{- '[SYSTEM_PROMPT]' + default_system_message + '[/SYSTEM_PROMPT]' }}
    {%- endif %}
{%- endif %}
{%- for message in loop_messages %}
    {#- Turns. #}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- elif message['content'] | length > 0 %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {{- block['text'] }}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['content'] is string %}
            {{- message['content'] }}
        {%- endif %}
        {%- if message['tool_calls'] is defined and message['tool_calls'] %}
            {{- '[TOOL_CALLS]' }}
        {%- endif %}
        {{- eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, got ' + message['role'] + '.') }}
    {%- endif %}
{%- endfor %}
"""
HEADERS = """{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
DATES = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
"""
THINKS = """{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == "user" %}
        {%- set ns.open = false %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
ML_LOOP = """{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LFM2 = """{{- bos_token -}}
{%- set system_prompt = "" -%}
{%- set ns = namespace(system_prompt="") -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system_prompt = messages[0]["content"] -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system_prompt = ns.system_prompt + ("\\n" if ns.system_prompt else "") + "List of tools: <|tool_list_start|>[" -%}
    {%- set ns.system_prompt = ns.system_prompt + "]<|tool_list_end|>" -%}
{%- endif -%}
{%- if ns.system_prompt -%}
    {{- "<|im_start|>system\\n" + ns.system_prompt + "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" -}}
    {%- set content = message["content"] -%}
    {%- if content is not string -%}
        {%- set content = content | tojson -%}
    {%- endif -%}
    {%- if message["role"] == "tool" -%}
        {%- set content = "<|tool_response_start|>" + content + "<|tool_response_end|>" -%}
    {%- endif -%}
    {{- content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""
PREFIX = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
"""
PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + "
        "'<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}")
PHI4MINI = ("{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
PHI4 = ("{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + "
        "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + "
        "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}"
        "{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}")


LLAMA2_TURNS = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system_message = false %}{% endif %}{% for message in rest %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
SMOLLM3 = """{%- set reasoning_mode = "/think" -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- endif -%}
  {%- set own = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in system_message -%}
  {{- own.replace("/system_override", "").rstrip() -}}
  {{- "<|im_end|>\\n" -}}
{%- else -%}
  {{- "## Metadata\\n\\n" -}}
  {{- "Knowledge Cutoff Date: June 2025\\n" -}}
  {%- set today = strftime_now("%d %B %Y") -%}
  {{- "Today Date: " ~ today ~ "\\n" -}}
  {{- "Reasoning Mode: " + reasoning_mode + "\\n\\n" -}}
  {{- "## Custom Instructions\\n\\n" -}}
  {%- if own -%}
    {{- own + "\\n\\n" -}}
  {%- elif reasoning_mode == "/think" -%}
    {{- "You are S. Think first: <think> so </think> then.\\n\\n" -}}
  {%- else -%}
    {{- "You are S.\\n\\n" -}}
  {%- endif -%}
  {{- "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n"  }}
    {%- endif -%}
{%- endif -%}
"""


def mistral(open, close, answer, which):
    loop = MISTRAL_LOOP.replace("OPEN", open).replace("CLOSE", close)
    return loop.replace("ANSWER", answer).replace("WHICH", which)


def prompts(open, inst, answer):
    return SYSTEM_PROMPT.replace("OPEN", open).replace("'INST'", "'" + inst + "'").replace("ANSWER", answer)


CONTENT, SPACED = 'message["content"]', '" " + message["content"]|trim'
TODAY = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are M.\\nYou know of 2023-10-01. Today is " + today + ".\\n\\nYou don't guess\\
 (e.g. \\"Where?\\" => \\"Here.\\")\\t\\d" %}
"""
UNDATED = """{%- set default_system_message = "You are M.\\n\\nYou don't guess (e.g. 'Where?' => 'Here.')" %}
"""
DEFAULT = "    {%- else %}\n        {{- '<|im_start|>system\\nYou are Q. You help.<|im_end|>\\n' }}\n"
FAMILIES = [  # name, template, control tokens, roles
    ("qwen2.5", TOOLS.replace("DEFAULT", DEFAULT) + ML_LOOP, CHATML, "system user assistant"),
    ("qwen3", TOOLS.replace("DEFAULT", "") + THINKS, CHATML, "system user assistant"),
    ("lfm2", LFM2, CHATML, "system user assistant"),
    ("llama3", "{{- bos_token }}\n" + HEADERS, LLAMA, "system user assistant"),
    ("llama3.2", DATES + HEADERS, LLAMA, "system user assistant"),
    ("gemma2", "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
     "{% endif %}{%- set loop_messages = messages -%}{%- set first_user_prefix = '' -%}" + GEMMA_LOOP, GEMMA, "user assistant"),
    ("gemma3", PREFIX + GEMMA_LOOP, GEMMA, "joined user assistant"),
    ("phi3", PHI3, PHI, "system user assistant"),
    ("phi4-mini", PHI4MINI, PHI, "system user assistant"),
    ("phi4", PHI4, CHATML + ["<|im_sep|>"], "system user assistant"),
    ("smollm3", SMOLLM3, CHATML, "system user assistant"),
    ("llama2", LLAMA2_TURNS, LLAMA2, "joined user assistant"),
    ("mistral-v0.1", PLAIN_TURNS, MISTRAL, "user assistant"),
    ("mistral-v1", mistral(" [INST] ", " [/INST]", '" " + message["content"]', "first"), MISTRAL, "joined user assistant"),
    ("mistral-first", mistral("[INST] ", " [/INST]", CONTENT, "first"), MISTRAL, "joined user assistant"),
    ("mistral-v3", mistral("[INST] ", "[/INST]", SPACED, "last"), MISTRAL, "last user assistant"),
    ("mistral-nemo", mistral("[INST]", "[/INST]", CONTENT, "last"), MISTRAL, "last user assistant"),
    ("mistral-v7", prompts("[SYSTEM_PROMPT] ", "[INST] ", "' ' + message['content']"), MISTRAL, "system user assistant"),
    ("mistral-v7-tekken", prompts("[SYSTEM_PROMPT]", "[INST]", "message['content']"), MISTRAL, "system user assistant"),
    ("mistral-small-3.1", SMALL.replace("DEFAULT", TODAY), MISTRAL, "system user assistant"),
    ("mistral-small-3.2", SMALL.replace("DEFAULT", UNDATED), MISTRAL, "system user assistant"),
    ("ministral-3", MINISTRAL.replace("DEFAULT", "You are M.\\nIt is {today}.\\n\\nYou don\\'t guess (\"Where?\" => \"Here.\")."),
     MISTRAL, "system user assistant"),
    ("ministral-3-silent", MINISTRAL.replace("DEFAULT", ""), MISTRAL, "system user assistant"),
]


DAYS = {"%d %B %Y": "@TODAY@", "%Y-%m-%d": "@DAY@"}


def refuse(text):
    raise jinja2.TemplateError(text)


def render(template, messages, reply):
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    eos = "</s>" if "[INST]" in template else ""
    bos = "<s>" if "<<SYS>>" in template else ""  # the first is no part of the text
    text = env.from_string(template).render(messages=messages, add_generation_prompt=reply, bos_token=bos, eos_token=eos,
                                            raise_exception=refuse, strftime_now=DAYS.get)
    return text[len(bos):]


def conversations(marks, system, flags):
    say = lambda role, text: {"role": role, "content": text}
    hostile = "a" + "".join(marks) + "b"
    turns = [[say("user", "Hi")], [say("user", "  \n two words\u3000\n")], [say("user", hostile)], [say("user", "")],
             [say("user", "One?"), say("assistant", " 1 "), say("user", "Two?\n")],
             [say("user", "One?"), say("assistant", hostile), say("user", hostile), say("assistant", "é"), say("user", "?")],
             [say("user", "Why?"), say("assistant", "<think>\nHm.\n</think>\n\nSo."), say("user", "And?")],
             [say("user", "One?"), say("assistant", "1")],
             [say("user", "Why?"), say("assistant", "<think>\nHm.</think>\nSo.")],
             [say("user", "a"), say("assistant", "1 \n"), say("user", " b"), say("assistant", "2"), say("user", "c ")]]
    if system:
        turns += [[say("system", text)] + t for t in turns[:1] + turns[4:6]
                  for text in ("Be brief.", " \nBe brief.\n", hostile)]
    if system in ("joined", "last"):
        turns += [[say("system", " Be brief. "), say("user", text)] for text in (" \n", " a ")]
    if flags:
        turns += [[say("system", text)] + t for t in (turns[0], turns[4])
                  for text in ("Be brief. /no_think\n", "/no_think", "/think", "/system_override Be /no_th/thinkink",
                               " /system_override", "/no_think/system_override a ")]
    return turns


def parts(template, messages, reply):
    """What the template says and what contents say: contents stand in as private characters. Whatever
    a template does to contents it does to those that it does not trim or take apart."""
    stand_in = lambda i: chr(0xe000 + i)
    text = render(template, [{"role": m["role"], "content": stand_in(i)} for i, m in enumerate(messages)], reply)
    out, said = [], ""
    for c in text:
        if 0xe000 <= ord(c) < 0xe000 + len(messages):
            out += [[said, True], [messages[ord(c) - 0xe000]["content"], False]]
            said = ""
        else:
            said += c
    return out + [[said, True]]


def family(name, template, marks, roles):
    roles = roles.split()
    cases = []
    for messages in conversations(marks, roles[0] != "user" and roles[0], "/no_think" in template):
        for reply in (True, False) if len(messages) == 2 and "add_generation_prompt" in template else (True,):
            text = render(template, messages, reply)
            case = {"messages": messages, "reply": reply, "text": text, "parts": []}
            if "".join(t for t, _ in parts(template, messages, reply)) == text:
                case["parts"] = parts(template, messages, reply)
            cases.append(case)
    return {"name": name, "template": template, "marks": marks, "roles": roles, "cases": cases}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    families = []
    for name, template, marks, roles in FAMILIES:
        path = folder and os.path.join(folder, name + ".jinja")
        if path and not os.path.exists(path):
            continue
        families.append(family(name, open(path).read() if path else template, marks, roles))
    with open(folder + "/chat.json" if folder else "tests/golden/chat.json", "w") as file:
        file.write(json.dumps({"families": families}, separators=(",", ":"), ensure_ascii=False)
                   .replace('},{"messages"', '},\n{"messages"') + "\n")


main()
