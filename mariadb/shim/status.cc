/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "status.h"
#include "bridge.h"
#include "engine.h"
#include "fulltext_merge.h"
#include <string>

namespace tidepool {

namespace {

/* The engine names its counters; the array that the server asks for is built in its memory each
   time. */
struct Counters {
  THD *thd;
  st_mysql_show_var *list;
  size_t count, capacity;
};

void take(Counters *counters, const char *name, size_t len, void *value,
          enum enum_mysql_show_type type) {
  if (counters->count + 1 >= counters->capacity) return;
  char *copy = thd_strmake(counters->thd, name, len);
  if (!value || !copy) return;
  st_mysql_show_var &var = counters->list[counters->count++];
  var.name = copy;
  var.value = value;
  var.type = type;
}

void take_counter(void *context, const char *name, size_t len, uint64_t value) {
  auto *counters = static_cast<Counters *>(context);
  auto *number = static_cast<ulonglong *>(thd_alloc(counters->thd, sizeof(ulonglong)));
  if (number) *number = value;
  take(counters, name, len, number, SHOW_ULONGLONG);
}

/* The server shows a text of any length, but its own table of status variables cuts it at 2,048
   characters. */
void take_sentence(void *context, const char *name, size_t len, const char *text, size_t text_len) {
  auto *counters = static_cast<Counters *>(context);
  take(counters, name, len, thd_strmake(counters->thd, text, MY_MIN(text_len, size_t{1000})),
       SHOW_CHAR);
}

int show_counters(THD *thd, st_mysql_show_var *var, void *, system_status_var *,
                  enum enum_var_type) {
  constexpr size_t CAPACITY = 256;
  auto *list =
      static_cast<st_mysql_show_var *>(thd_calloc(thd, CAPACITY * sizeof(st_mysql_show_var)));
  var->type = SHOW_ARRAY;
  var->value = list;
  if (!list || !engine.db) return 0;
  Counters counters{thd, list, 0, CAPACITY};
  tp_status(engine.db, &counters, take_counter, take_sentence);
  constexpr char MERGED[] = "ft_merged_rows";
  take_counter(&counters, MERGED, sizeof MERGED - 1, merged_rows());
  return 0;
}

void take_text(void *context, const char *text, size_t len) {
  static_cast<std::string *>(context)->assign(text, len);
}

} // namespace

st_mysql_show_var status_variables[] = {
    {"Tidepool", reinterpret_cast<char *>(&show_counters), SHOW_FUNC},
    {nullptr, nullptr, SHOW_UNDEF}};

bool show_status(handlerton *hton, THD *thd, stat_print_fn *print, enum ha_stat_type type) {
  if (type != HA_ENGINE_STATUS || !engine.db) return false;
  std::string text;
  tp_status_text(engine.db, &text, take_text);
  const LEX_CSTRING *name = hton_name(hton);
  return print(thd, name->str, name->length, "", 0, text.data(), text.size());
}

} // namespace tidepool
