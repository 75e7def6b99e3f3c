/* config without Lua: files are refused with a reason, structs work.
 * build: -DCAIRN_NO_LUA */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"

int main(void) {
    char error[256] = "", text[CAIRN_CONFIG_TEXT_BYTES];
    cairn_config config, before;
    memset(&config, 0x33, sizeof config);
    before = config;
    tap_ok(cairn_config_load("config.lua", &config, error, sizeof error) == CAIRN_UNSUPPORTED &&
           strstr(error, "CAIRN_NO_LUA"), "load: %s", error);
    tap_ok(cairn_config_parse("return {}", 9, NULL, &config, error, sizeof error) ==
           CAIRN_UNSUPPORTED && !memcmp(&config, &before, sizeof config), "parse: %s", error);
    cairn_config_default(&config);
    tap_ok(!cairn_config_check(&config, &before, error, sizeof error), "the default is right");
    tap_ok(!cairn_config_dump(&config, text, sizeof text) && strstr(text, "page_size = 64,"),
           "and can be dumped");
    config.topk = -1;
    tap_ok(cairn_config_check(&config, &before, error, sizeof error) == CAIRN_INVALID_CONFIG &&
           strstr(error, "topk = -1"), "a mistake is told: %s", error);
    return tap_done();
}
