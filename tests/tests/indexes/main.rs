//! FULLTEXT and SPATIAL indexes.

mod fulltext;
mod fulltext_definitions;
mod fulltext_pending;
mod spatial;
mod spatial_definitions;
