//! FULLTEXT and SPATIAL indexes.

mod fulltext;
mod fulltext_definitions;
mod spatial;
mod spatial_definitions;
