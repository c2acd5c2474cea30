/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Strings as bytes that memcmp orders as their collation does, and that end themselves.

  A key is several parts written one after the other, so the encoding of a part may not be a prefix
  of the encoding of another value: it says where it ends. There are two ways to end a string:

  NO PAD ('a' < 'a '):       bytes as they are, 00 written as 00 FF; the end is 00 00.

  PAD SPACE ('a' = 'a '):    the string is compared as if spaces followed it without end. Trailing spaces are cut.
  The bytes are taken as units of the width of a space (its weight may have 2 or 3 bytes). Where a
  run of k spaces stands, or the end, one space is written and then a byte
                                 1 … 100     k, if a unit smaller than a space follows the run
                                 101         the same for k > 100; k - 101 follows, as bytes that grow with it
                                 128         this is the end
                                 154         k > 100, and a unit greater than a space follows; 101's bytes, inverted
                                 155 … 254   255 - k, the same for k <= 100
  so the end sorts as endless spaces would.

  What is written that way:
    BYTES     the string itself, for binary strings and for _bin collations whose byte order is their order;
    WEIGHTS   the collation's weights (strnxfrm), level by level, each level ending itself. As in the server, levels
  above the first are compared with PAD SPACE even if the collation is NO PAD.
    CODES     two bytes for each character, where the server's weights are not what it compares by. That is so for
  big5_chinese_*: strnxfrm gives all characters of as many strokes one weight, strnncoll goes by
  their codes. A CHAR is padded with spaces, so in a column of that type every collation sorts as
  PAD SPACE, as the server sorts it. BYTES can be turned back into the string, up to the number of
  trailing spaces.
*/
#ifndef TIDEPOOL_COLLATION_H
#define TIDEPOOL_COLLATION_H

#include "server.h"
#include <string>
#include <vector>

namespace tidepool {

class String_codec {
public:
  String_codec() = default;
  String_codec(CHARSET_INFO *cs, bool is_char);

  /* Longest encoding of `bytes` bytes of text, and room that encode() wants for weights. */
  size_t encoded_max(size_t bytes) const;
  size_t scratch_size(size_t bytes) const;

  /* Writes the encoding of the text at `to`, gives its end. */
  uchar *encode(uchar *to, const uchar *text, size_t len, uchar *scratch, size_t scratch_len) const;
  /* Begins the encoding of each text that begins with this one; of several levels, as the first
     one has it. */
  uchar *encode_beginning(uchar *to, const uchar *text, size_t len, uchar *scratch,
                          size_t scratch_len) const;
  /* The end of an encoding; bytes are read after exclusive-or with `mask`. nullptr if it has none
     before `end`. */
  const uchar *skip(const uchar *from, const uchar *end, uchar mask) const;
  /* Turns BYTES back: gives the end of the encoding, sets *len to the bytes written. nullptr:
     corrupt, or too long. */
  const uchar *decode(uchar *to, size_t capacity, size_t *len, const uchar *from, const uchar *end,
                      uchar mask) const;

  bool is_bytes() const { return levels == 0; }
  /* Whether weights are of one level, of two bytes each. */
  bool has_pairs() const { return levels == 1 && level[0].unit == 2 && !codes; }
  /* Those of a text without trailing spaces, at most `room` bytes; gives their length. */
  size_t pairs(uchar *to, size_t room, const uchar *text, size_t len) const {
    return weights(to, room, text, trimmed(text, len), level[0].flags);
  }
  bool is_codes() const { return codes; }
  bool pads() const { return pad; }
  /* How each level ends: the bytes of a space there, or nothing where it ends by 00 00. BYTES are
     one level. */
  std::vector<std::string> spaces() const;
  CHARSET_INFO *charset() const { return cs; }
  /* Length of the text without the trailing spaces that don't count. */
  size_t trimmed(const uchar *text, size_t len) const {
    return pad ? cs->lengthsp(reinterpret_cast<const char *>(text), len) : len;
  }

private:
  static constexpr uint MAX_LEVELS = 6;
  size_t weights(uchar *to, size_t room, const uchar *text, size_t len, uint flags) const;
  struct Level {
    uint flags; /* for strnxfrm; 0 = all that the collation has */
    uint8 unit; /* width of a space; 0 = written as NO PAD */
    uchar space[8];
  };
  CHARSET_INFO *cs = nullptr;
  bool pad = false;
  bool codes = false;
  uint8 levels = 0; /* 0 = BYTES */
  Level level[MAX_LEVELS] = {};
};

} // namespace tidepool

#endif
