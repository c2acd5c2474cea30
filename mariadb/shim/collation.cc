/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "collation.h"

namespace tidepool {

namespace {

constexpr uchar LONG_RUN_BELOW = 101, END_OF_TEXT = 128, LONG_RUN_ABOVE = 154;
constexpr size_t SHORT_RUN_MAX = 100;

uchar *put_nopad(uchar *to, const uchar *from, const uchar *end) {
  while (const void *zero = from < end ? memchr(from, 0, end - from) : nullptr) {
    const size_t len = static_cast<const uchar *>(zero) - from;
    memcpy(to, from, len);
    to += len;
    *to++ = 0x00;
    *to++ = 0xFF;
    from += len + 1;
  }
  if (from < end) memcpy(to, from, end - from);
  to += end - from;
  *to++ = 0x00;
  *to++ = 0x00;
  return to;
}

const uchar *skip_nopad(const uchar *from, const uchar *end, uchar mask) {
  for (;;) {
    from = from < end ? static_cast<const uchar *>(memchr(from, mask, end - from)) : nullptr;
    if (!from || end - from < 2) return nullptr;
    const bool ends = (from[1] ^ mask) == 0;
    from += 2;
    if (ends) return from;
  }
}

/* A run of k spaces that a smaller (or greater) unit follows. */
uchar *put_run(uchar *to, size_t k, bool below) {
  const uchar mask = below ? 0 : 0xFF;
  if (k <= SHORT_RUN_MAX) {
    *to++ = static_cast<uchar>(k) ^ mask;
    return to;
  }
  *to++ = below ? LONG_RUN_BELOW : LONG_RUN_ABOVE;
  for (k -= SHORT_RUN_MAX + 1; k >= 255; k -= 255) *to++ = 0xFF ^ mask;
  *to++ = static_cast<uchar>(k) ^ mask;
  return to;
}

/* `from` is after a space. *k = 0: the end of the text. */
const uchar *get_run(const uchar *from, const uchar *end, uchar mask, size_t *k) {
  if (from >= end) return nullptr;
  const uchar marker = *from++ ^ mask;
  *k = 0;
  if (marker == END_OF_TEXT) return from;
  if (marker < END_OF_TEXT) {
    *k = marker;
    if (marker < LONG_RUN_BELOW) return from;
  } else {
    mask ^= 0xFF;
    *k = marker ^ 0xFF;
    if (marker > LONG_RUN_ABOVE) return from;
  }
  for (; from < end; from++) {
    const uchar byte = *from ^ mask;
    *k += byte;
    if (byte != 0xFF) return from + 1;
  }
  return nullptr;
}

/* The text has no space at its end. */
uchar *put_pad_bytes(uchar *to, const uchar *from, const uchar *end) {
  while (const void *found = from < end ? memchr(from, ' ', end - from) : nullptr) {
    const uchar *space = static_cast<const uchar *>(found);
    memcpy(to, from, space - from);
    to += space - from;
    from = space;
    while (*from == ' ') from++;
    *to++ = ' ';
    to = put_run(to, from - space, *from < ' ');
  }
  if (from < end) memcpy(to, from, end - from);
  to += end - from;
  *to++ = ' ';
  *to++ = END_OF_TEXT;
  return to;
}

uchar *put_pad_units(uchar *to, const uchar *from, const uchar *end, const uchar *space,
                     size_t unit) {
  while (static_cast<size_t>(end - from) >= unit && memcmp(end - unit, space, unit) == 0)
    end -= unit;
  while (from < end) {
    const size_t here = MY_MIN(unit, static_cast<size_t>(end - from));
    if (here < unit || memcmp(from, space, unit) != 0) {
      memcpy(to, from, here);
      to += here;
      from += here;
      continue;
    }
    size_t k = 0;
    int order = 0;
    while (order == 0 && from < end) {
      from += unit;
      k++;
      /* A tail narrower than a space can't be; it would sort below. */
      order = static_cast<size_t>(end - from) < unit ? -1 : memcmp(from, space, unit);
    }
    memcpy(to, space, unit);
    to += unit;
    to = put_run(to, k, order < 0);
  }
  memcpy(to, space, unit);
  to += unit;
  *to++ = END_OF_TEXT;
  return to;
}

const uchar *skip_pad(const uchar *from, const uchar *end, const uchar *space, size_t unit,
                      uchar mask) {
  uchar masked[8];
  for (size_t i = 0; i < unit; i++) masked[i] = space[i] ^ mask;
  for (;;) {
    if (unit == 1) {
      from = from < end ? static_cast<const uchar *>(memchr(from, masked[0], end - from)) : nullptr;
      if (!from) return nullptr;
    } else {
      while (static_cast<size_t>(end - from) >= unit && memcmp(from, masked, unit) != 0)
        from += unit;
    }
    if (static_cast<size_t>(end - from) <= unit) return nullptr;
    size_t k;
    from = get_run(from + unit, end, mask, &k);
    if (!from || k == 0) return from;
  }
}

constexpr size_t CODE_LENGTH = 2;
/* What is no character sorts after all that are. */
constexpr uint NOT_A_CHARACTER = 0xFF00;

/* Whether strnncoll distinguishes characters that strnxfrm does not. Of all collations these alone
   are so (tests/tests/collations.rs). */
bool compares_by_code(CHARSET_INFO *cs) { return !strcmp(cs->cs_name.str, "big5"); }

/* The characters as strnncoll compares them: single bytes by sort_order, the others by their code.
   Gives the length. */
size_t put_codes(CHARSET_INFO *cs, uchar *to, const uchar *from, const uchar *end) {
  uchar *const start = to;
  while (from < end) {
    const int len = cs->charlen(from, end);
    uint code = NOT_A_CHARACTER | *from;
    if (len == 1) code = cs->sort_order[*from];
    if (len == 2) code = static_cast<uint>(from[0] << 8 | from[1]);
    *to++ = static_cast<uchar>(code >> 8);
    *to++ = static_cast<uchar>(code);
    from += len == 2 ? 2 : 1;
  }
  return to - start;
}

} // namespace

String_codec::String_codec(CHARSET_INFO *charset, bool is_char)
    : cs(charset), pad(is_char || !(charset->state & MY_CS_NOPAD)) {
  if (cs == &my_charset_bin) {
    pad = false;
    return;
  }
  if ((cs->state & MY_CS_BINSORT) && cs->mbminlen == 1) return; /* BYTES */
  codes = compares_by_code(cs);

  uchar space[8];
  cs->cset->fill(cs, reinterpret_cast<char *>(space), cs->mbminlen, ' ');
  auto add_level = [&](uint flags, bool padded) {
    Level &l = level[levels++];
    l.flags = flags;
    l.unit = 0;
    if (padded) {
      uchar found[64];
      const size_t len = weights(found, sizeof found, space, cs->mbminlen, flags);
      if (len > 0 && len <= sizeof l.space) {
        l.unit = static_cast<uint8>(len);
        memcpy(l.space, found, len);
      }
    }
  };
  if (cs->uca && (cs->levels_for_order & (cs->levels_for_order - 1))) {
    for (uint i = 0; i < MAX_LEVELS; i++)
      if (cs->levels_for_order & (1 << i)) add_level(MY_STRXFRM_LEVEL1 << i, pad || levels > 0);
  } else {
    /* Old collations of several levels give all of them at once, with their own separators. */
    add_level(0, pad && cs->levels_for_order == 1);
  }
}

std::vector<std::string> String_codec::spaces() const {
  if (levels == 0) return {pad ? " " : ""};
  std::vector<std::string> all;
  for (uint i = 0; i < levels; i++)
    all.emplace_back(reinterpret_cast<const char *>(level[i].space), level[i].unit);
  return all;
}

size_t String_codec::scratch_size(size_t bytes) const {
  if (codes) return bytes * CODE_LENGTH;
  return levels == 0 ? 0 : cs->coll->strnxfrmlen(cs, bytes) + 16;
}

/* The weights of a level, at most `room` bytes; gives their length. */
size_t String_codec::weights(uchar *to, size_t room, const uchar *text, size_t len,
                             uint flags) const {
  return codes ? put_codes(cs, to, text, text + len)
               : cs->coll->strnxfrm(cs, to, room, INT_MAX32, text, len, flags);
}

size_t String_codec::encoded_max(size_t bytes) const {
  if (levels == 0) return 2 * bytes + bytes / 255 + 4;
  const size_t room = scratch_size(bytes);
  return levels * (2 * room + room / 255 + 16);
}

uchar *String_codec::encode(uchar *to, const uchar *text, size_t len, uchar *scratch,
                            size_t scratch_len) const {
  len = trimmed(text, len);
  if (levels == 0)
    return pad ? put_pad_bytes(to, text, text + len) : put_nopad(to, text, text + len);
  for (uint i = 0; i < levels; i++) {
    const Level &l = level[i];
    const uchar *const end = scratch + weights(scratch, scratch_len, text, len, l.flags);
    to = l.unit ? put_pad_units(to, scratch, end, l.space, l.unit) : put_nopad(to, scratch, end);
  }
  return to;
}

uchar *String_codec::encode_beginning(uchar *to, const uchar *text, size_t len, uchar *scratch,
                                      size_t scratch_len) const {
  len = trimmed(text, len);
  constexpr size_t END = 2; /* 00 00, or a space and END_OF_TEXT */
  if (levels == 0)
    return (pad ? put_pad_bytes(to, text, text + len) : put_nopad(to, text, text + len)) - END;
  const Level &first = level[0];
  const bool all_at_once = levels == 1 && cs->levels_for_order != 1;
  const uint flags = all_at_once ? MY_STRXFRM_LEVEL1 : first.flags;
  const uchar *const end = scratch + weights(scratch, scratch_len, text, len, flags);
  if (!first.unit) return put_nopad(to, scratch, end) - END;
  return put_pad_units(to, scratch, end, first.space, first.unit) - first.unit - 1;
}

const uchar *String_codec::skip(const uchar *from, const uchar *end, uchar mask) const {
  static const uchar space = ' ';
  if (levels == 0) return pad ? skip_pad(from, end, &space, 1, mask) : skip_nopad(from, end, mask);
  for (uint i = 0; i < levels && from; i++) {
    const Level &l = level[i];
    from = l.unit ? skip_pad(from, end, l.space, l.unit, mask) : skip_nopad(from, end, mask);
  }
  return from;
}

const uchar *String_codec::decode(uchar *to, size_t capacity, size_t *len, const uchar *from,
                                  const uchar *end, uchar mask) const {
  uchar *const start = to;
  uchar *const limit = to + capacity;
  const uchar special = (pad ? ' ' : 0) ^ mask;
  for (;;) {
    const uchar *found =
        from < end ? static_cast<const uchar *>(memchr(from, special, end - from)) : nullptr;
    if (!found || end - found < 2 || limit - to < found - from) return nullptr;
    if (mask == 0) {
      memcpy(to, from, found - from);
      to += found - from;
    } else {
      for (; from < found; from++) *to++ = *from ^ mask;
    }
    if (pad) {
      size_t k;
      from = get_run(found + 1, end, mask, &k);
      if (!from || static_cast<size_t>(limit - to) < k) return nullptr;
      if (k == 0) break;
      memset(to, ' ', k);
      to += k;
    } else {
      from = found + 2;
      if ((found[1] ^ mask) == 0) break;
      if (to == limit) return nullptr;
      *to++ = 0;
    }
  }
  *len = to - start;
  return from;
}

} // namespace tidepool
