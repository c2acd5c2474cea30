/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* What a table's definition says of its file: encryption and compression. Where keys come from. */
#ifndef TIDEPOOL_ENCRYPTION_H
#define TIDEPOOL_ENCRYPTION_H

#include "bridge.h"
#include "server.h"

/* The options of a table that the engine knows; the server parses them, and knows this name. */
struct ha_table_option_struct {
  uint encrypted;   /* TP_ENCRYPTED_… */
  uint compression; /* TP_COMPRESSION_… */
  /* The server stores options that are numbers as ulonglong, of whatever type their variable is. */
  ulonglong encryption_key_id;
};

namespace tidepool {

/* ENCRYPTED, ENCRYPTION_KEY_ID and COMPRESSION. */
extern ha_create_table_option table_options[];

/* The engine asks the server's encryption service for keys from now on. */
void give_keyring();

/* Whether the service has a key that tables without ENCRYPTION_KEY_ID are encrypted with. */
bool has_default_key();

/* What the definition of a table says. */
tp_file_options file_options_of(const ha_table_option_struct *options);

/* Whether a table may be encrypted so; if not, an error of the statement says why. */
bool may_encrypt(const tp_file_options &options);

/* Whether two definitions say the same. */
bool has_same_file_options(const ha_table_option_struct *a, const ha_table_option_struct *b);

} // namespace tidepool

#endif
