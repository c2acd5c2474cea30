//! How pages are compressed: the setting.

use tidepool_store::packed::Codec;

/// Which codec pages are written with. Pages that are there already stay as they are until they are
/// written again; any codec can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PageCompression {
    /// The codec that brings most. A page that it can't make shorter by a sixteenth is stored as it
    /// is.
    #[default]
    Auto,
    /// None.
    Off,
    /// LZ4: takes half the time of Zstandard, and leaves half as much again.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

impl PageCompression {
    /// All of them, by their number.
    pub const ALL: [PageCompression; 4] =
        [PageCompression::Auto, PageCompression::Off, PageCompression::Lz4, PageCompression::Zstd];

    /// The codec that is tried for a page.
    pub(crate) fn codec(self) -> Codec {
        match self {
            PageCompression::Off => Codec::Raw,
            PageCompression::Lz4 => Codec::Lz4,
            PageCompression::Auto | PageCompression::Zstd => Codec::Zstd,
        }
    }
}
