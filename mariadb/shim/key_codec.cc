/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "key_codec.h"
#include "row_codec.h"
#include "server_versions.h"

namespace tidepool {

/* ---- keys */

bool successor(uchar *key, size_t *len) {
  while (*len > 0) {
    if (key[*len - 1] != 0xFF) {
      key[*len - 1]++;
      return true;
    }
    (*len)--;
  }
  return false;
}

static void invert(uchar *from, const uchar *end) {
  for (; from < end; from++) *from ^= 0xFF;
}

Index_layout Index_layout::row_id() {
  Index_layout layout;
  layout.parts.push_back(Part::row_id());
  layout.clustered = layout.unique = true;
  layout.measure();
  return layout;
}

/* Of UNIQUE … USING HASH the engine has an index over the hash alone. In an open table the key
   begins with that; in a TABLE_SHARE the columns that the user named come first. */
static bool is_before_hash(const TABLE_SHARE *share, const KEY *key, const KEY_PART_INFO *part) {
  return key->algorithm == HA_KEY_ALG_LONG_HASH &&
         !(share->field[part->fieldnr - 1]->flags & LONG_UNIQUE_HASH_FIELD);
}

Index_layout::Index_layout(const TABLE_SHARE *share, const KEY *key, const Index_layout *pk)
    : users(key->user_defined_key_parts),
      unique((key->flags & HA_NOSAME) && key->algorithm != HA_KEY_ALG_LONG_HASH), clustered(!pk),
      primary(pk) {
  if (is_fulltext(*key)) {
    text = std::make_shared<Fulltext_index>(share, key);
    for (const Column &column : text->columns()) parts.push_back(Part::text_words(column));
    key_max_ = text->word_key_max() + pk->key_max();
    scratch_ = text->scratch_size();
    return;
  }
  const KEY_PART_INFO *first = key->key_part;
  if (tidepool::is_spatial(*key)) {
    users = 0;
    parts.push_back(Part::cell(share, first));
  }
  if (is_before_hash(share, key, first)) {
    users = 1;
    while (is_before_hash(share, key, first)) first++;
  }
  for (uint i = 0; i < users; i++) {
    parts.emplace_back(share, first + i);
    nullable |= parts.back().column.null_mask != 0;
  }
  users = static_cast<uint>(parts.size());
  if (pk) {
    bool shared = false;
    for (const Part &part : pk->parts) {
      uint16 found = MAX_FIELDS;
      for (uint16 i = 0; i < users && part.image != Part::ROW_ID && part.whole; i++)
        if (parts[i].whole && parts[i].column.fieldnr == part.column.fieldnr) found = i;
      if (found < MAX_FIELDS) {
        shared = true;
        pieces.push_back({found, static_cast<uchar>(parts[found].mask ^ part.mask)});
      } else {
        pieces.push_back({static_cast<uint16>(parts.size()), 0});
        parts.push_back(part);
      }
    }
    if (!shared) pieces.clear();
    bare_entries = unique && parts.size() > users;
  }
  measure();
}

void Index_layout::measure() {
  bool varies = !clustered && unique && nullable;
  for (size_t i = 0; i < parts.size(); i++) {
    const Part &part = parts[i];
    key_max_ += part.encoded_max;
    if (part.image == Part::STRING)
      scratch_ = MY_MAX(scratch_, part.codec.scratch_size(part.length));
    if (!clustered && unique && i >= users) continue;
    varies |= part.image == Part::STRING || part.image == Part::CELL || part.column.null_mask;
    fixed += part.image_length;
  }
  if (varies) fixed = 0;
}

bool Index_layout::has_null(const uchar *record) const {
  if (!nullable) return false;
  for (uint i = 0; i < users; i++)
    if (parts[i].column.is_null(record)) return true;
  return false;
}

uchar *Index_layout::encode_parts(uchar *to, uint first, uint last, const uchar *record,
                                  TABLE *table, const uchar *row_id, Key_room &room) const {
  for (uint i = first; i < last; i++) {
    const Part &part = parts[i];
    uchar *const start = to;
    if (part.column.null_mask) {
      const bool is_null = part.column.is_null(record);
      *to++ = is_null ? 0 : 1;
      if (is_null) {
        if (part.mask) invert(start, to);
        continue;
      }
    }
    size_t len = 0;
    const uchar *at = part.image == Part::ROW_ID   ? row_id
                      : part.image == Part::STRING ? part.column.text(record, &len)
                                                   : record + part.column.offset;
    to = part.put(to, at, len, table, room);
    if (part.mask) invert(start, to);
  }
  return to;
}

size_t Index_layout::encode(uchar *to, const uchar *record, TABLE *table, const uchar *row_id,
                            Key_room &room, bool *bare) const {
  *bare = bare_entries && !has_null(record);
  const uint last = *bare ? users : static_cast<uint>(parts.size());
  return encode_parts(to, 0, last, record, table, row_id, room) - to;
}

size_t Index_layout::encode_user_parts(uchar *to, const uchar *record, TABLE *table,
                                       Key_room &room) const {
  return encode_parts(to, 0, users, record, table, nullptr, room) - to;
}

size_t Index_layout::encode_search(uchar *to, const KEY *key, const uchar *image, key_part_map map,
                                   TABLE *table, Key_room &room, Search *search) const {
  uchar *const start = to;
  uint i = 0;
  search->has_null = false;
  for (; map & 1; map >>= 1, i++) {
    /* Parts of the primary key that the server appended are used while they are in the tree's order
       too. A map of the whole key has more bits than there are parts, and behind the last part is
       another key's. */
    if (i >= parts.size() || i >= key->ext_key_parts || parts[i].image == Part::ROW_ID ||
        key->key_part[i].field->field_index != parts[i].column.fieldnr || (i >= users && unique))
      break;
    const Part &part = parts[i];
    const KEY_PART_INFO &info = key->key_part[i];
    uchar *const part_start = to;
    const uchar *at = image;
    image += info.store_length;
    if (part.column.null_mask) {
      const bool is_null = *at++ != 0;
      *to++ = is_null ? 0 : 1;
      if (is_null) {
        search->has_null = true;
        if (part.mask) invert(part_start, to);
        continue;
      }
    }
    size_t len = info.length;
    if (part.column.storage == Column::VARCHAR || part.column.storage == Column::BLOB) {
      len = uint2korr(at);
      at += HA_KEY_BLOB_LENGTH;
    }
    to = part.put(to, at, len, table, room);
    if (part.mask) invert(part_start, to);
  }
  search->parts = i;
  return to - start;
}

const uchar *Index_layout::skip_parts(const uchar *key, const uchar *end, uint n) const {
  for (uint i = 0; i < n && key; i++) key = parts[i].skip(key, end);
  return key;
}

const uchar *Index_layout::skip_part_at(uint part, const uchar *from, const uchar *end) const {
  return parts[part].skip(from, end);
}

/* ---- values of secondary entries */

size_t Index_layout::value_max(const uchar *record) const {
  size_t max = 2 + primary->key_max_;
  for (const Part &part : parts) {
    if (part.image == Part::CELL) max += TP_SPATIAL_VALUE_MAX;
    if (!part.whole || part.unpack == Part::NOTHING) continue;
    max += 5 + part.column.size;
  }
  return max;
}

size_t Index_layout::value_bound() const {
  if (text) return Fulltext_index::VALUE_MAX;
  return value_max(nullptr) - (bare_entries ? 0 : 2 + primary->key_max_);
}

bool Index_layout::same(const Index_layout &other, const std::vector<int> *old_of) const {
  if (parts.size() != other.parts.size() || users != other.users || unique != other.unique ||
      clustered != other.clustered || bare_entries != other.bare_entries ||
      nullable != other.nullable)
    return false;
  if (!text != !other.text || (text && !text->same(*other.text))) return false;
  for (size_t i = 0; i < parts.size(); i++) {
    const Part &a = parts[i], &b = other.parts[i];
    if (a.image != b.image || a.unpack != b.unpack || a.whole != b.whole || a.mask != b.mask ||
        a.image_length != b.image_length)
      return false;
    if (a.image == Part::ROW_ID) continue;
    const int fieldnr = old_of ? (*old_of)[b.column.fieldnr] : b.column.fieldnr;
    if (a.column.fieldnr != fieldnr || a.column.storage != b.column.storage ||
        !a.column.null_mask != !b.column.null_mask || a.column.cs != b.column.cs)
      return false;
    /* The text of a VARCHAR or BLOB is written the same, however long it may be: whole, or up to
       the part's length. */
    const bool has_length_of_its_own =
        a.column.storage == Column::VARCHAR || a.column.storage == Column::BLOB;
    if (!has_length_of_its_own && a.column.size != b.column.size) return false;
    if (!(has_length_of_its_own && a.whole) &&
        (a.length != b.length || a.encoded_max != b.encoded_max))
      return false;
  }
  return true;
}

size_t Index_layout::encode_value(uchar *to, const uchar *record, const uchar *pk, size_t pk_len,
                                  bool bare) const {
  uchar *const start = to;
  if (bare) {
    if (!primary->fixed) {
      int2store(to, static_cast<uint16>(pk_len));
      to += 2;
    }
    memcpy(to, pk, pk_len);
    to += pk_len;
  }
  for (const Part &part : parts) {
    if (part.image == Part::CELL) {
      uchar rectangle[TP_RECTANGLE_LEN];
      part.rectangle_of(record, rectangle);
      to += tp_spatial_value({rectangle, sizeof rectangle}, to);
      continue;
    }
    if (!part.whole || part.unpack == Part::NOTHING || part.column.is_null(record)) continue;
    if (part.unpack == Part::BYTES) {
      memcpy(to, record + part.column.offset, part.column.size);
      to += part.column.size;
      continue;
    }
    size_t len;
    const uchar *text = part.column.text(record, &len);
    if (part.unpack == Part::SPACES) {
      to = put_length(to, len - part.codec.trimmed(text, len));
      continue;
    }
    if (part.column.storage == Column::CHAR)
      len = part.column.cs->lengthsp(reinterpret_cast<const char *>(text), len);
    to = put_length(to, len);
    memcpy(to, text, len);
    to += len;
  }
  return to - start;
}

bool Index_layout::has_any_of(const uchar *needed) const {
  if (text) return false;
  for (const Part &part : parts)
    if (part.image != Part::ROW_ID && needed[part.column.fieldnr]) return true;
  return false;
}

bool Index_layout::has_beginning_of(const uchar *needed) const {
  if (text) return true;
  for (const Part &part : parts)
    if (!part.whole && part.image != Part::ROW_ID && needed[part.column.fieldnr]) return true;
  return false;
}

/* Where the clustered key in the value of a unique entry is. */
static const uchar *value_pk(const uchar *value, const uchar *end, size_t fixed, size_t *len) {
  if (fixed) {
    *len = fixed;
  } else {
    if (end - value < 2) return nullptr;
    *len = uint2korr(value);
    value += 2;
  }
  return static_cast<size_t>(end - value) < *len ? nullptr : value;
}

const uchar *Index_layout::clustered_key(const uchar *key, size_t key_len, const uchar *value,
                                         size_t value_len, uchar *room, size_t *len) const {
  const uchar *const pk = find_clustered_key(key, key_len, value, value_len, room, len);
  return pk && *len <= primary->key_max_ ? pk : nullptr;
}

const uchar *Index_layout::find_clustered_key(const uchar *key, size_t key_len, const uchar *value,
                                              size_t value_len, uchar *room, size_t *len) const {
  const uchar *const end = key + key_len;
  if (text) {
    const uchar *const pk = text->codec().skip(key, end);
    *len = pk ? end - pk : 0;
    return pk;
  }
  if (bare_entries && !nullable) return value_pk(value, value + value_len, primary->fixed, len);
  if (pieces.empty() && primary->fixed && !unique) {
    *len = primary->fixed;
    return key_len < *len ? nullptr : end - *len;
  }
  /* Where each part begins. */
  const uchar *starts[MAX_REF_PARTS * 2 + 1];
  const uchar *at = key;
  uint i = 0;
  for (; i < users && at; i++) {
    starts[i] = at;
    at = parts[i].skip(at, end);
  }
  if (!at) return nullptr;
  if (bare_entries && at == end) return value_pk(value, value + value_len, primary->fixed, len);
  if (pieces.empty()) {
    *len = end - at;
    return at;
  }
  for (; i < parts.size() && at; i++) {
    starts[i] = at;
    at = parts[i].skip(at, end);
  }
  if (!at) return nullptr;
  starts[i] = at;
  uchar *to = room, *const room_end = room + primary->key_max_;
  for (const Piece &piece : pieces) {
    if (starts[piece.part + 1] - starts[piece.part] > room_end - to) return nullptr;
    for (const uchar *from = starts[piece.part]; from < starts[piece.part + 1]; from++)
      *to++ = *from ^ piece.mask;
  }
  *len = to - room;
  return room;
}

/* Reads one part of a secondary entry: from the key at *at, and from the unpack information at
   *unpack. */
static bool decode_entry_part(const Part &part, uchar *record, bool wanted, const uchar **at,
                              const uchar *end, const uchar **unpack, const uchar *unpack_end) {
  const Column &column = part.column;
  size_t len;
  if (likely(part.reversible())) {
    *at = wanted ? part.decode(record, *at, end, &len) : part.skip(*at, end);
    return *at != nullptr;
  }
  if (part.image == Part::CELL) {
    const size_t rectangle_len = *unpack < unpack_end ? tp_spatial_value_len(**unpack) : 0;
    if (!rectangle_len || static_cast<size_t>(unpack_end - *unpack) < rectangle_len) return false;
    *unpack += rectangle_len;
  }
  if (!part.whole || part.image == Part::ROW_ID) {
    *at = part.skip(*at, end);
    return *at != nullptr;
  }
  const bool is_null = column.null_mask && *at < end && (**at ^ part.mask) == 0;
  if (wanted && (is_null || part.unpack == Part::NOTHING || part.unpack == Part::SPACES)) {
    *at = part.decode(record, *at, end, &len);
  } else {
    *at = part.skip(*at, end);
    if (wanted) column.set_not_null(record);
  }
  if (!*at) return false;
  if (is_null || part.unpack == Part::NOTHING) return true;
  if (part.unpack == Part::BYTES) {
    if (static_cast<size_t>(unpack_end - *unpack) < column.size) return false;
    if (wanted) memcpy(record + column.offset, *unpack, column.size);
    *unpack += column.size;
    return true;
  }
  size_t kept;
  *unpack = get_length(*unpack, unpack_end, &kept);
  if (!*unpack) return false;
  if (part.unpack == Part::SPACES) {
    if (!wanted) return true;
    if (len + kept > column.size) return false;
    memset(column.text_room(record) + len, ' ', kept);
    column.set_text_length(record, len + kept);
    return true;
  }
  if (static_cast<size_t>(unpack_end - *unpack) < kept || kept > column.size) return false;
  if (wanted) {
    memcpy(column.text_room(record), *unpack, kept);
    column.set_text_length(record, kept);
  }
  *unpack += kept;
  return true;
}

bool Index_layout::decode(uchar *record, const uchar *key, size_t key_len, const uchar *value,
                          size_t value_len, const uchar *needed) const {
  const uchar *const end = key + key_len;
  const uchar *const unpack_end = value + value_len;
  const uchar *unpack = value;
  const uchar *pk = nullptr;
  size_t pk_len = 0;
  if (bare_entries && (!nullable || skip_parts(key, end, users) == end)) {
    pk = value_pk(value, unpack_end, primary->fixed, &pk_len);
    if (!pk) return false;
    unpack = pk + pk_len;
  }
  const uint in_tree_key = pk ? users : static_cast<uint>(parts.size());
  for (uint i = 0; i < in_tree_key; i++)
    if (!decode_entry_part(parts[i], record,
                           parts[i].image != Part::ROW_ID && needed[parts[i].column.fieldnr], &key,
                           end, &unpack, unpack_end))
      return false;
  if (!pk) return true;
  const uchar *const pk_end = pk + pk_len;
  for (uint i = 0; i < primary->parts.size(); i++) {
    const Part &part = primary->parts[i];
    const bool appended = pieces.empty() || pieces[i].part >= users;
    if (!appended) {
      pk = part.skip(pk, pk_end);
      if (!pk) return false;
    } else if (!decode_entry_part(part, record,
                                  part.image != Part::ROW_ID && needed[part.column.fieldnr], &pk,
                                  pk_end, &unpack, unpack_end)) {
      return false;
    }
  }
  return true;
}

const uchar *Index_layout::bare_clustered_key(const uchar *value, size_t value_len,
                                              size_t *len) const {
  const uchar *const pk = value_pk(value, value + value_len, primary->fixed, len);
  return pk && *len <= primary->key_max_ ? pk : nullptr;
}

bool Index_layout::decode_clustered(uchar *record, const uchar *key, size_t key_len,
                                    const uchar *needed) const {
  const uchar *const end = key + key_len;
  for (const Part &part : parts) {
    if (part.reversible() && needed[part.column.fieldnr]) {
      size_t len;
      key = part.decode(record, key, end, &len);
    } else {
      key = part.skip(key, end);
    }
    if (!key) return false;
  }
  return true;
}

bool Index_layout::changed(const uchar *old_record, const uchar *new_record) const {
  for (const Part &part : parts)
    if (part.image != Part::ROW_ID && !part.column.same(old_record, new_record)) return true;
  return false;
}

} // namespace tidepool
