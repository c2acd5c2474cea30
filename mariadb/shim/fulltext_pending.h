/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Pending words: of a row that was written of late a FULLTEXT index may have one pending row, which
  lies in the same tree, in place of an entry for each word.

      tree key   D0 ‖ the clustered key
      value      length of the texts, as a length (row_codec.h)
                 ‖ texts ‖ words
      texts      those that the row's entries of words are of, a column each: length + 1, or 0 for
                 NULL, and bytes; nothing: the row has no entries of words
      words      the row's, ascending: length, key, length, value, as of an entry (fulltext_index.h)
                 without the clustered key; none: the row is gone, or has no word

  Invariant, in every view. Where it sees no pending row, the entries of words are the row's. Where
  it sees one, the words there are the row's; the entries that it sees of this row are those of the
  texts, and searches pass over them. Pending rows and entries are ordinary versioned entries, so
  snapshots, rollback, savepoints, recovery and purge keep the invariant by themselves.

  Locks. Who writes a row's words has the row's lock, and writes the pending row before entries. So
  no transaction but a merge (fulltext_merge.h) changes words of a row whose pending row another has
  locked or written, and a merge locks the pending row before it does.

  A pending row is no longer than LENGTH_MAX and what lies in a leaf: searches read all of them, and
  DROP INDEX looks for no long values.
*/
#ifndef TIDEPOOL_FULLTEXT_PENDING_H
#define TIDEPOOL_FULLTEXT_PENDING_H

#include "fulltext_search.h"

namespace tidepool {

/* The words of a pending row, one by one. */
class Pending_words {
public:
  explicit Pending_words(tp_bytes all) : at(all.data), end(all.data + all.len) {}
  /* false: there are no more, or they can't be understood (is_bad). */
  bool next();
  tp_bytes key{nullptr, 0}, value{nullptr, 0};
  bool is_bad = false;

private:
  const uchar *at, *const end;
};

struct Pending_row {
  /* Longest value. */
  static constexpr size_t LENGTH_MAX = 2048;

  Hit id; /* the clustered key */
  tp_bytes texts{nullptr, 0}, words{nullptr, 0};

  bool has_entries() const { return texts.len != 0; }
  /* false: it can't be understood. */
  bool decode(const uchar *value, size_t len);
  bool get_texts(Texts *to) const;
};

/* Pending rows of a tree, as a reader sees them, in the order of their clustered keys. */
class Pending_rows {
public:
  /* Reads up to `max` of them. A TP_* code. */
  int read(tp_reader *reader, tp_transaction *transaction, uint tree, size_t max);
  const std::vector<Pending_row> &all() const { return rows; }
  const Pending_row *find(const Hit &id) const;

private:
  Arena arena;
  std::vector<Pending_row> rows;
};

/* Keys of pending rows: at or above the first, and below the second. */
extern const tp_bytes pending_begin, pending_end;
/* Writes the key of a pending row, gives its length. */
size_t put_pending_key(uchar *to, tp_bytes pk);

/* The value of a pending row of a row that has entries of these texts, if it has; null: no words.
 */
void put_pending(std::string *to, const Texts *entries_of, const Row_words *words);
/* The same, with the texts of an earlier pending row of the row. */
void put_pending_after(std::string *to, const Pending_row &earlier, const Row_words &words);

} // namespace tidepool

#endif
