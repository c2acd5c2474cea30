//! The options that a client's group of an option file may have.
//!
//! The clients refuse a name that they don't know, and so does this program: a misspelt `ssl-ca`
//! that is passed over in silence is a connection in clear text. A name may be cut short as long as
//! one option alone begins with it; `loose-` makes an unknown one harmless.

/// What an option means to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// It is followed.
    Used,
    /// Switches on or off.
    Switch,
    /// It can't change which server is reached, or how safely.
    Harmless,
    /// TLS as the driver can't do it.
    BeyondTls,
    /// Another thing that the driver can't do, and that matters.
    Refused,
}

const OPTIONS: [(&str, Meaning); 66] = [
    ("host", Meaning::Used),
    ("port", Meaning::Used),
    ("socket", Meaning::Used),
    ("user", Meaning::Used),
    ("password", Meaning::Used),
    ("protocol", Meaning::Used),
    ("ssl", Meaning::Switch),
    ("ssl-ca", Meaning::Used),
    ("ssl-cert", Meaning::Used),
    ("ssl-key", Meaning::Used),
    ("ssl-mode", Meaning::Used),
    ("ssl-verify-server-cert", Meaning::Switch),
    ("tls-version", Meaning::Used),
    ("connect-timeout", Meaning::Used),
    ("ssl-capath", Meaning::BeyondTls),
    ("ssl-cipher", Meaning::BeyondTls),
    ("ssl-crl", Meaning::BeyondTls),
    ("ssl-crlpath", Meaning::BeyondTls),
    ("ssl-fips-mode", Meaning::BeyondTls),
    ("ssl-fp", Meaning::BeyondTls),
    ("ssl-fplist", Meaning::BeyondTls),
    ("ssl-passphrase", Meaning::BeyondTls),
    ("tls-ciphersuites", Meaning::BeyondTls),
    ("tls-fp", Meaning::BeyondTls),
    ("tls-fplist", Meaning::BeyondTls),
    ("tls-sni-servername", Meaning::BeyondTls),
    ("bind-address", Meaning::Refused),
    ("dns-srv-name", Meaning::Refused),
    ("init-command", Meaning::Refused),
    ("login-path", Meaning::Refused),
    ("password1", Meaning::Refused),
    ("password2", Meaning::Refused),
    ("password3", Meaning::Refused),
    ("server-public-key-path", Meaning::Refused),
    ("abort-source-on-error", Meaning::Harmless),
    ("character-sets-dir", Meaning::Harmless),
    ("compress", Meaning::Harmless),
    ("compression-algorithms", Meaning::Harmless),
    ("connect-expired-password", Meaning::Harmless),
    ("database", Meaning::Harmless),
    ("debug", Meaning::Harmless),
    ("debug-check", Meaning::Harmless),
    ("debug-info", Meaning::Harmless),
    ("default-auth", Meaning::Harmless),
    ("default-character-set", Meaning::Harmless),
    ("enable-cleartext-plugin", Meaning::Harmless),
    ("get-server-public-key", Meaning::Harmless),
    ("interactive-timeout", Meaning::Harmless),
    ("local-infile", Meaning::Harmless),
    ("max-allowed-packet", Meaning::Harmless),
    ("multi-results", Meaning::Harmless),
    ("multi-statements", Meaning::Harmless),
    ("named-pipe", Meaning::Harmless),
    ("net-buffer-length", Meaning::Harmless),
    ("optional-resultset-metadata", Meaning::Harmless),
    ("pipe", Meaning::Harmless),
    ("plugin-dir", Meaning::Harmless),
    ("progress-reports", Meaning::Harmless),
    ("reconnect", Meaning::Harmless),
    ("report-data-truncation", Meaning::Harmless),
    ("restricted-auth", Meaning::Refused),
    ("safe-updates", Meaning::Harmless),
    ("secure-auth", Meaning::Harmless),
    ("shared-memory-base-name", Meaning::Harmless),
    ("timeout", Meaning::Harmless),
    ("zstd-compression-level", Meaning::Harmless),
];

/// An option of a file, by the name that it has in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    pub meaning: Meaning,
    /// What `skip-` and its like before the name say; `None` without them.
    pub switched: Option<bool>,
}

/// The option that is written so; `None` for one that is unknown and may be (`loose-`).
///
/// # Errors
/// What is wrong with the name, for people.
pub fn find(written: &str) -> Result<Option<Named>, String> {
    let written = written.replace('_', "-");
    let (may_be_unknown, name) = match written.strip_prefix("loose-") {
        Some(rest) => (true, rest),
        None => (false, written.as_str()),
    };
    let by_name = |name: &str, switched| -> Result<Option<Named>, String> {
        let named = |&(name, meaning): &(&'static str, Meaning)| Named { name, meaning, switched };
        if let Some(option) = OPTIONS.iter().find(|option| option.0 == name) {
            return Ok(Some(named(option)));
        }
        let longer: Vec<_> = OPTIONS
            .iter()
            .filter(|option| !name.is_empty() && option.0.starts_with(name))
            .collect();
        let Some(first) = longer.first() else { return Ok(None) };
        // Not ambiguous where the rest only adds to it, as password1 to password.
        match longer.iter().find(|option| !option.0.starts_with(first.0)) {
            None => Ok(Some(named(first))),
            Some(other) => Err(format!("{written} may be {} or {}", first.0, other.0)),
        }
    };
    if let Some(option) = by_name(name, None)? {
        return Ok(Some(option));
    }
    for (prefix, switched) in [("skip-", false), ("disable-", false), ("enable-", true)] {
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        if let Some(option) = by_name(rest, Some(switched))? {
            return Ok(Some(option));
        }
    }
    match may_be_unknown {
        true => Ok(None),
        false => Err(format!(
            "{written} is no option that this program understands; if a client needs it, write \
             loose-{written}, or put it into the group of that client"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_cut_short_and_switched_off() {
        let name = |written: &str| find(written).unwrap().map(|found| (found.name, found.switched));
        assert_eq!(name("ssl_ca"), Some(("ssl-ca", None)));
        assert_eq!(name("pass"), Some(("password", None)));
        assert_eq!(name("skip-ssl"), Some(("ssl", Some(false))));
        assert_eq!(name("disable-ssl-verify"), Some(("ssl-verify-server-cert", Some(false))));
        assert_eq!(name("loose-no-such-thing"), None);
        assert_eq!(name("loose-user"), Some(("user", None)));
    }

    #[test]
    fn unknown_and_ambiguous_names_are_refused_by_name() {
        assert!(find("ssl-cax").unwrap_err().starts_with("ssl-cax is no option"));
        assert_eq!(find("ssl-c").unwrap_err(), "ssl-c may be ssl-ca or ssl-cert");
        assert!(find("s").is_err());
        assert!(find("").is_err());
    }

    #[test]
    fn each_option_is_listed_once() {
        let mut names: Vec<&str> = OPTIONS.iter().map(|option| option.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OPTIONS.len());
    }
}
