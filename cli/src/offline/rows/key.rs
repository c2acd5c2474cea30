//! Parts of keys: where they end, and back to the bytes of their columns.

use super::description::{Image, Part, Tree};

/// Markers behind a space, of strings that are compared as if spaces followed them.
const LONG_RUN_BELOW: u8 = 101;
const END_OF_TEXT: u8 = 128;
const LONG_RUN_ABOVE: u8 = 154;

impl Part {
    fn mask(&self) -> u8 {
        if self.descending { 0xff } else { 0 }
    }

    /// Splits a key behind this part, which it begins with.
    pub fn split<'k>(&self, key: &'k [u8]) -> Option<(&'k [u8], &'k [u8])> {
        let mut at = 0;
        if self.nullable {
            at = 1;
            if *key.first()? ^ self.mask() == 0 {
                return key.split_at_checked(at);
            }
        }
        if self.image != Image::String {
            return key.split_at_checked(at + self.image_len);
        }
        for space in &self.levels {
            at += match space.is_empty() {
                true => end_without_padding(&key[at..], self.mask())?,
                false => end_with_padding(&key[at..], space, self.mask())?,
            };
        }
        key.split_at_checked(at)
    }

    /// The bytes of the column, as a row has them, from this part alone; `Some(None)` is NULL.
    /// `None`: they can't be
    /// read from it.
    pub fn decode(&self, part: &[u8]) -> Option<Option<Vec<u8>>> {
        if !self.reversible {
            return None;
        }
        let mut bytes: Vec<u8> = part.iter().map(|byte| byte ^ self.mask()).collect();
        if self.nullable {
            if bytes.first()? == &0 {
                return Some(None);
            }
            bytes.remove(0);
        }
        match self.image {
            Image::Raw => {}
            Image::Unsigned => bytes.reverse(),
            Image::Signed => {
                *bytes.first_mut()? ^= 0x80;
                bytes.reverse();
            }
            Image::String => bytes = text_of(&bytes, self.levels.first()?)?,
            _ => return None,
        }
        Some(Some(bytes))
    }
}

/// Where a string ends whose end is 00 00, and whose zeroes are 00 FF.
fn end_without_padding(key: &[u8], mask: u8) -> Option<usize> {
    let mut at = 0;
    loop {
        at += key.get(at..)?.iter().position(|byte| byte ^ mask == 0)? + 2;
        if key.get(at - 1)? ^ mask == 0 {
            return Some(at);
        }
    }
}

/// Where a string ends whose end is a space and a marker.
fn end_with_padding(key: &[u8], space: &[u8], mask: u8) -> Option<usize> {
    let is_space = |unit: &[u8]| unit.iter().zip(space).all(|(byte, space)| byte ^ mask == *space);
    let mut at = 0;
    loop {
        match space.len() {
            1 => at += key.get(at..)?.iter().position(|byte| byte ^ mask == space[0])?,
            unit => {
                while !is_space(key.get(at..at + unit)?) {
                    at += unit;
                }
            }
        }
        let (len, spaces) = run(key.get(at + space.len()..)?, mask)?;
        at += space.len() + len;
        if spaces == 0 {
            return Some(at);
        }
    }
}

/// The marker behind a space: its length, and how many spaces it stands for; 0 is the end of the
/// text.
fn run(key: &[u8], mut mask: u8) -> Option<(usize, usize)> {
    let marker = key.first()? ^ mask;
    let mut spaces = match marker {
        END_OF_TEXT => return Some((1, 0)),
        0..END_OF_TEXT => {
            if marker < LONG_RUN_BELOW {
                return Some((1, usize::from(marker)));
            }
            usize::from(marker)
        }
        _ => {
            mask ^= 0xff;
            if marker > LONG_RUN_ABOVE {
                return Some((1, usize::from(marker ^ 0xff)));
            }
            usize::from(marker ^ 0xff)
        }
    };
    for (at, byte) in key.iter().enumerate().skip(1) {
        let byte = byte ^ mask;
        spaces += usize::from(byte);
        if byte != 0xff {
            return Some((at + 1, spaces));
        }
    }
    None
}

/// The text of a string that is written by its own bytes.
fn text_of(key: &[u8], space: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = 0;
    let special = space.first().copied().unwrap_or(0);
    loop {
        let len = key.get(at..)?.iter().position(|byte| *byte == special)?;
        text.extend_from_slice(&key[at..at + len]);
        at += len + 1;
        if space.is_empty() {
            at += 1;
            if *key.get(at - 1)? == 0 {
                return Some(text);
            }
            text.push(0);
        } else {
            let (len, spaces) = run(key.get(at..)?, 0)?;
            at += len;
            if spaces == 0 {
                return Some(text);
            }
            text.resize(text.len() + spaces, b' ');
        }
    }
}

impl Tree {
    /// The parts of a key, as far as it has any.
    pub fn split<'k>(&self, key: &'k [u8]) -> Option<Vec<&'k [u8]>> {
        let (mut parts, mut rest) = (Vec::new(), key);
        for part in &self.parts {
            if rest.is_empty() && parts.len() >= self.own_parts {
                break;
            }
            let (front, behind) = part.split(rest)?;
            parts.push(front);
            rest = behind;
        }
        rest.is_empty().then_some(parts)
    }

    /// Bytes of every key; `None` if that varies.
    fn fixed_len(&self) -> Option<usize> {
        let fixed =
            |part: &Part| (!part.nullable && part.image != Image::String).then_some(part.image_len);
        self.parts.iter().map(fixed).sum()
    }

    /// The clustered key that an entry of this index, which is not the clustered one, leads to.
    pub fn clustered_key(&self, clustered: &Tree, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        let mut rest = key;
        for part in &self.parts[..self.own_parts] {
            let (front, behind) = part.split(rest)?;
            parts.push(front);
            rest = behind;
        }
        if self.bare_entries && rest.is_empty() {
            return match clustered.fixed_len() {
                Some(len) => value.get(..len).map(<[u8]>::to_vec),
                None => {
                    let len = usize::from(u16::from_le_bytes(*value.first_chunk()?));
                    value.get(2..2 + len).map(<[u8]>::to_vec)
                }
            };
        }
        if self.pieces.is_empty() {
            return Some(rest.to_vec());
        }
        for part in &self.parts[self.own_parts..] {
            let (front, behind) = part.split(rest)?;
            parts.push(front);
            rest = behind;
        }
        let mut made = Vec::new();
        for (part, mask) in &self.pieces {
            made.extend(parts.get(*part)?.iter().map(|byte| byte ^ mask));
        }
        Some(made)
    }
}
