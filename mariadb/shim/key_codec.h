/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Keys: columns of a record as bytes that memcmp orders as the index does.

  A key part is
      [00 if NULL | 01]   only if the column can be NULL; NULL sorts first
      the value           of fixed length, or ending itself (collation.h); nothing for NULL
  and for a descending part every byte of it is inverted.

  Clustered index             tree key = the primary key's parts; without a primary key: an 8-byte row id
  Secondary index             tree key = its parts ‖ those parts of the primary key that it doesn't have
  Unique secondary index      the same if a column is NULL; otherwise its own parts alone, so that the tree's keys are
  what must be unique, and the clustered key stands in the entry's value (unless its parts are all
  among the index's)

  Value of a secondary entry
      [clustered key, with its length before it (2 bytes) if that varies]   in the last case only
  unpack information, for each part in the order of the key that covers its whole column but can't
  be read back: FLOAT, DOUBLE, old temporal types: the bytes of the column
          strings through weights:           length, text
  VARCHAR through bytes, PAD SPACE:  number of trailing spaces (lengths as in row_codec.h; nothing
  for NULL)

  A SPATIAL index has one part, a CELL: where the rectangle around the geometry is, and how large.
  Its unpack information is that rectangle: of a point 00 and two doubles, else 01 and four.

  All integers here and in the trees' keys are big-endian; those in values are little-endian.
*/
#ifndef TIDEPOOL_KEY_CODEC_H
#define TIDEPOOL_KEY_CODEC_H

#include "fulltext_index.h"
#include "key_part.h"
#include <memory>
#include <vector>

namespace tidepool {

/* Format of keys and of secondary entries' values; part of a table's metadata. */
constexpr uchar KEY_FORMAT = 1;

/* Makes of these bytes the smallest key that is greater than all that begin with them; false if
   there is none. */
bool successor(uchar *key, size_t *len);

/* What a search key was made of. */
struct Search {
  uint parts = 0;
  bool has_null = false;
};

class Index_layout {
public:
  /* `primary` is null for the clustered index itself. */
  Index_layout(const TABLE_SHARE *share, const KEY *key, const Index_layout *primary);
  /* The clustered index of a table without a primary key. */
  static Index_layout row_id();

  /* Of a FULLTEXT index (fulltext_index.h), else nullptr: its entries are made of words, and what
     is said here of parts in keys and values is not of it. */
  Fulltext_index *fulltext() const { return text.get(); }
  /* Whether it is a SPATIAL index: its own part is a CELL, and the value has the rectangle. */
  bool is_spatial() const { return !parts.empty() && parts[0].image == Part::CELL; }

  /* Whether the record has what a SPATIAL index is of; true of other indexes. */
  bool has_all_geometries(const uchar *record) const {
    return !is_spatial() || parts[0].has_geometry(record);
  }

  /* Longest key; the longest value of a secondary entry is not bounded by it. */
  size_t key_max() const { return key_max_; }
  size_t scratch_size() const { return scratch_; }
  bool is_unique() const { return unique; }
  /* Whether entries without NULL have the clustered key in their value. */
  bool has_bare_entries() const { return bare_entries; }
  uint user_parts() const { return users; }
  const std::vector<Part> &all_parts() const { return parts; }
  /* The primary key from the parts here: which part, and whether it is inverted there. Empty if the
     appended parts are the whole primary key. */
  struct Piece {
    uint16 part;
    uchar mask;
  };
  const std::vector<Piece> &pieces_of_clustered_key() const { return pieces; }
  /* Whether it holds one of the needed columns. */
  bool has_any_of(const uchar *needed) const;
  /* Whether it holds only the beginning of one of the needed columns. */
  bool has_beginning_of(const uchar *needed) const;
  /* Whether entries of the other are entries of this one: the same columns, written in the same
     way. If the other is of another definition of the table, its field i is field
     old_of[i] here. */
  bool same(const Index_layout &other, const std::vector<int> *old_of = nullptr) const;
  /* Length of every key, 0 if it varies. */
  size_t fixed_length() const { return fixed; }

  /* The tree key of a record. *bare is set if it is a unique key that has no primary key in it. */
  size_t encode(uchar *to, const uchar *record, TABLE *table, const uchar *row_id, Key_room &room,
                bool *bare) const;
  /* The user's parts alone. */
  size_t encode_user_parts(uchar *to, const uchar *record, TABLE *table, Key_room &room) const;
  /* A search key from the server's key image: as many leading parts as the map has and the tree's
     order allows. */
  size_t encode_search(uchar *to, const KEY *key, const uchar *image, key_part_map map,
                       TABLE *table, Key_room &room, Search *search) const;

  /* Appends the value of a secondary entry. `to` has room for value_max(). */
  size_t value_max(const uchar *record) const;
  /* No value is longer than this. */
  size_t value_bound() const;
  size_t encode_value(uchar *to, const uchar *record, const uchar *pk, size_t pk_len,
                      bool bare) const;

  /* The clustered key of a secondary entry: a pointer into the entry, or into `room` (of the
     clustered index's key_max(), and no longer than that). nullptr: corrupt. */
  const uchar *clustered_key(const uchar *key, size_t key_len, const uchar *value, size_t value_len,
                             uchar *room, size_t *len) const;
  /* The same for an entry that is known to have the clustered key in its value. */
  const uchar *bare_clustered_key(const uchar *value, size_t value_len, size_t *len) const;
  /* Where the first `n` parts of a key end; nullptr: corrupt. */
  const uchar *skip_parts(const uchar *key, const uchar *end, uint n) const;

  /* Where one part that begins here ends; nullptr: corrupt. */
  const uchar *skip_part_at(uint part, const uchar *from, const uchar *end) const;

  /* Sets the columns of a record from a secondary entry; false: corrupt. Only those with
     needed[fieldnr]. */
  bool decode(uchar *record, const uchar *key, size_t key_len, const uchar *value, size_t value_len,
              const uchar *needed) const;
  /* The same from a clustered key, for the columns that the row doesn't have: those that are
     reversible. */
  bool decode_clustered(uchar *record, const uchar *key, size_t key_len, const uchar *needed) const;

  /* Whether the columns of this index differ between two records of the same table (by bytes, not
     by collation). */
  bool changed(const uchar *old_record, const uchar *new_record) const;

private:
  Index_layout() = default;
  const uchar *find_clustered_key(const uchar *key, size_t key_len, const uchar *value,
                                  size_t value_len, uchar *room, size_t *len) const;
  uchar *encode_parts(uchar *to, uint first, uint last, const uchar *record, TABLE *table,
                      const uchar *row_id, Key_room &room) const;
  void measure();
  bool has_null(const uchar *record) const;

  std::vector<Part> parts; /* the user's, then what is appended of the primary key */
  uint users = 0;
  bool unique = false;
  bool clustered = false;
  std::shared_ptr<Fulltext_index> text;
  /* unique, and the primary key has parts that are not among the user's */
  bool bare_entries = false;
  bool nullable = false;
  size_t fixed = 0;
  size_t key_max_ = 0;
  size_t scratch_ = 0;
  std::vector<Piece> pieces;
  const Index_layout *primary = nullptr;
};

} // namespace tidepool

#endif
