//! An empty list of certificate authorities, in the place of the crate of this name.
//!
//! The MySQL driver adds Mozilla's list to the authorities that its user names, and has no way to
//! leave it out. A user who names the company's authority with `ssl-ca` means that one alone: with
//! the list, a certificate that any public authority has signed for another name would pass
//! `ssl-mode=VERIFY_CA`. The workspace replaces the list by this crate (`[patch.crates-io]`).

use pki_types::TrustAnchor;

/// The authorities that are trusted without being named: none.
pub const TLS_SERVER_ROOTS: &[TrustAnchor<'static>] = &[];

#[cfg(test)]
mod tests {
    #[test]
    fn no_authority_is_trusted_unnamed() {
        assert!(super::TLS_SERVER_ROOTS.is_empty());
    }
}
