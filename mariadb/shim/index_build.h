/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  New indexes are filled, or all of a table that is rebuilt, while others read and write the table.

      fill       the rows of a snapshot → entries → sorted → the new trees
      catch_up   rounds: rows written since, before and after → entries removed and added; until
                 few are left
      finish     alone with the table: the last round

  Of a table that is rebuilt all trees are new, the clustered one too: a row is converted
  (row_conversion.h), and goes into that as an entry goes into the others.

  The engine knows which rows a round is about (engine/src/db/catch_up.rs). Their entries are made
  here, by the columns of the definition to come, which reads rows of all versions of the table.

  How long the server keeps others away at the end depends on what is left for the last round. So
  rounds go on while there is more than LEFT_FOR_THE_END, also by transactions that are not at
  their end: the server would wait for these as well, with everybody else behind it.
*/
#ifndef TIDEPOOL_INDEX_BUILD_H
#define TIDEPOOL_INDEX_BUILD_H

#include "bridge.h"
#include "foreign_key_definition.h"
#include "row_conversion.h"
#include "server.h"
#include "table_share.h"

namespace tidepool {

/* A change under way: what the server keeps for us from prepare to commit. */
class Index_change final : public inplace_alter_handler_ctx {
public:
  Index_change(TABLE *altered, const std::string &name, const Metadata &now)
      : name(name), layouts(altered), metadata(now) {}
  ~Index_change() override {
    if (change) tp_change_free(change);
  }

  tp_index_change *change = nullptr;
  const std::string name;
  Layouts layouts; /* of the table to come */
  Metadata metadata;
  std::vector<uint> built; /* its new trees */
  /* Of a table that is rebuilt; else null. */
  std::unique_ptr<Row_conversion> conversion;
  /* Its rows come in the order of the new clustered index. */
  bool rows_in_order = false;
};

class Index_build {
public:
  /* No TP_* codes: a row has no geometry for a SPATIAL index; it could not be converted, and an
     error was sent. */
  static constexpr int NO_GEOMETRY = -1, REFUSED = -2;

  /* Uses record[0] of `altered`, the table to come. */
  Index_build(THD *thd, TABLE *altered) : thd(thd), altered(altered) {}

  /* These give TP_* codes, NO_GEOMETRY or REFUSED; *failed is the change that an error is about. */
  int fill(Index_change *context, uint64_t rows_expected);
  int catch_up(const std::vector<Index_change *> &all, Index_change **failed);
  int finish(const std::vector<Index_change *> &all, Index_change **failed);

private:
  int round(Index_change *context, tp_round *report);
  bool rest(ulonglong time_us);

  THD *const thd;
  TABLE *const altered;
};

} // namespace tidepool

#endif
