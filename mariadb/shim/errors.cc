/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "errors.h"

namespace tidepool {

String last_error_text() {
  char text[2048];
  tp_last_error(text, sizeof text);
  String copy;
  copy.append(text, strlen(text));
  return copy;
}

static void explain(THD *thd, bool log) {
  String text = last_error_text();
  if (thd) {
    /* A warning beside the error, which strict mode must not put in the error's place. */
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_GET_ERRMSG, "Tidepool: %s",
                        text.c_ptr_safe());
  }
  if (log) sql_print_error("Tidepool: %s", text.c_ptr_safe());
}

int server_error(int result, THD *thd) {
  switch (result) {
    case TP_OK: return 0;
    case TP_END:
    case TP_NOT_FOUND: return HA_ERR_KEY_NOT_FOUND;
    case TP_DUPLICATE: return HA_ERR_FOUND_DUPP_KEY;
    case TP_LOCK_TIMEOUT:
      /* The server rolls back the statement only; as in InnoDB, the transaction goes on. */
      if (thd) thd->mark_transaction_to_rollback(false);
      return HA_ERR_LOCK_WAIT_TIMEOUT;
    case TP_LOCK_NOWAIT:
      if (thd) thd->mark_transaction_to_rollback(false);
      return HA_ERR_LOCK_WAIT_TIMEOUT;
    case TP_DEADLOCK:
      if (thd) thd->mark_transaction_to_rollback(true);
      return HA_ERR_LOCK_DEADLOCK;
    case TP_TOO_MANY_LOCKS:
      /* As with InnoDB: nothing but the rollback of the transaction gives the locks back. */
      if (thd) thd->mark_transaction_to_rollback(true);
      explain(thd, false);
      return HA_ERR_LOCK_TABLE_FULL;
    case TP_RECORD_CHANGED:
      if (thd) thd->mark_transaction_to_rollback(true);
      /* On a replica, where a trigger has read before: in IDEMPOTENT mode the server would pass the
         row over, and commit what is left of the transaction, which is nothing. A deadlock it tries
         again in every mode. */
      return thd && thd->rgi_slave ? HA_ERR_LOCK_DEADLOCK : HA_ERR_RECORD_CHANGED;
    case TP_MUST_ROLLBACK:
      if (thd) thd->mark_transaction_to_rollback(true);
      return HA_ERR_ROLLBACK;
    case TP_INTERRUPTED: return HA_ERR_ABORTED_BY_USER;
    case TP_READ_ONLY: explain(thd, false); return HA_ERR_TABLE_READONLY;
    case TP_KEY_TOO_LONG: /* print_error() says how long, and what the limit is */
      return HA_ERR_INDEX_COL_TOO_LONG;
    case TP_VALUE_TOO_LONG: return HA_ERR_TO_BIG_ROW;
    case TP_TABLE_EXISTS: return HA_ERR_TABLE_EXIST;
    case TP_TABLE_MISSING: return HA_ERR_NO_SUCH_TABLE;
    case TP_TABLE_CHANGED: return HA_ERR_TABLE_DEF_CHANGED;
    case TP_TABLE_BUSY: explain(thd, false); return HA_ERR_LOCK_WAIT_TIMEOUT;
    case TP_TABLE_DISCARDED: explain(thd, false); return HA_ERR_TABLESPACE_MISSING;
    case TP_TOO_MANY_TRX: return HA_ERR_TOO_MANY_CONCURRENT_TRXS;
    case TP_NO_SPACE: explain(thd, true); return HA_ERR_DISK_FULL;
    case TP_CORRUPT: explain(thd, true); return HA_ERR_CRASHED;
    case TP_NO_KEY: explain(thd, true); return HA_ERR_DECRYPTION_FAILED;
    case TP_FORMAT: explain(thd, true); return HA_ERR_TABLE_CORRUPT;
    default: explain(thd, true); return HA_ERR_INTERNAL_ERROR;
  }
}

} // namespace tidepool
