/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "encryption.h"
#include "engine.h"
#include "errors.h"
#include <mysql/service_encryption.h>

namespace tidepool {

namespace {

constexpr uint DEFAULT_KEY = ENCRYPTION_KEY_SYSTEM_DATA;

/* 0: there is such a key. */
int newest_version(uint32_t id, uint32_t *version) {
  *version = encryption_key_get_latest_version(id);
  return *version == ENCRYPTION_KEY_VERSION_INVALID;
}

/* `len` is the capacity first, then the length of the key. 0: `key` has it. */
int key_bytes(uint32_t id, uint32_t version, uint8_t *key, uint32_t *len) {
  uint length = *len;
  const uint result = encryption_key_get(id, version, key, &length);
  *len = length;
  return result != 0;
}

} // namespace

void give_keyring() { tp_set_keyring(newest_version, key_bytes); }

bool has_default_key() { return encryption_key_id_exists(DEFAULT_KEY); }

tp_file_options file_options_of(const ha_table_option_struct *options) {
  if (!options) return {DEFAULT_KEY, TP_ENCRYPTED_DEFAULT, TP_COMPRESSION_AUTO};
  return {static_cast<uint32_t>(options->encryption_key_id),
          static_cast<uint8_t>(options->encrypted), static_cast<uint8_t>(options->compression)};
}

bool may_encrypt(const tp_file_options &options) {
  if (tp_check_encryption(engine.db, &options) == TP_OK) return true;
  String text = last_error_text();
  my_printf_error(ER_ILLEGAL_HA_CREATE_OPTION, "Tidepool can't make the table: %s", MYF(0),
                  text.c_ptr_safe());
  return false;
}

bool has_same_file_options(const ha_table_option_struct *a, const ha_table_option_struct *b) {
  const tp_file_options of_a = file_options_of(a), of_b = file_options_of(b);
  return of_a.encrypted == of_b.encrypted && of_a.key_id == of_b.key_id &&
         of_a.compression == of_b.compression;
}

} // namespace tidepool
