//! Encrypted connections: what the user asks for, in the words of either client, and what the
//! driver does about it.
//!
//! | asked for | checked of the server |
//! |---|---|
//! | nothing, `skip-ssl`, `ssl-mode=DISABLED` | not encrypted |
//! | `ssl-mode=PREFERRED` | nothing; not encrypted where the server can't |
//! | `ssl`, `ssl-cert`, `ssl-mode=REQUIRED` | nothing: encrypted, to whatever answers |
//! | `ssl-ca`, `ssl-mode=VERIFY_CA` | that the authority has signed its certificate |
//! | `ssl-verify-server-cert`, `ssl-mode=VERIFY_IDENTITY` | that too, and that it names the host |
//!
//! An option that asks for more than the driver can do (a list of revoked certificates, say) is
//! refused by name, because leaving it out would weaken the connection. A Unix socket stays within
//! the machine and is never encrypted.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use mysql::{ClientIdentity, SslOpts};

use crate::exit::{Error, Result};

/// Where systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How much of a connection's safety is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// No encryption.
    #[default]
    Disabled,
    /// Encryption where the server has it.
    Preferred,
    /// Encryption.
    Required,
    /// And a certificate that a trusted authority has signed.
    VerifyCa,
    /// And for the very host.
    VerifyIdentity,
}

impl std::str::FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Mode, &'static str> {
        match text.to_ascii_uppercase().as_str() {
            "DISABLED" => Ok(Mode::Disabled),
            "PREFERRED" => Ok(Mode::Preferred),
            "REQUIRED" => Ok(Mode::Required),
            "VERIFY_CA" => Ok(Mode::VerifyCa),
            "VERIFY_IDENTITY" => Ok(Mode::VerifyIdentity),
            _ => Err("DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY is wanted"),
        }
    }
}

/// What the options say, of the command line or of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// `ssl-mode`.
    pub mode: Option<Mode>,
    /// `ssl`, `skip-ssl`.
    pub on: Option<bool>,
    /// `ssl-verify-server-cert`.
    pub verify: Option<bool>,
    /// `ssl-ca`.
    pub ca: Option<PathBuf>,
    /// `ssl-cert`.
    pub cert: Option<PathBuf>,
    /// `ssl-key`.
    pub key: Option<PathBuf>,
    /// Options that the driver can't do, with their places.
    pub refused: Vec<String>,
}

impl Wish {
    /// This one, with what it leaves open from another. Encryption that this one switches off stays
    /// off, and encryption that this one asks for is not switched off by the other.
    pub fn or(self, mut other: Wish) -> Wish {
        if self.mode.is_none() && self.on != Some(false) && self.settle() != Mode::Disabled {
            other.mode = other.mode.filter(|mode| *mode != Mode::Disabled);
            other.on = other.on.filter(|on| *on);
        }
        let is_settled = self.mode.is_some() || self.on == Some(false);
        let other = if is_settled {
            let refused = if self.settle() == Mode::Disabled { Vec::new() } else { other.refused };
            Wish { mode: None, on: None, verify: None, refused, ..other }
        } else {
            other
        };
        Wish {
            mode: self.mode.or(other.mode),
            on: self.on.or(other.on),
            verify: self.verify.or(other.verify),
            ca: self.ca.or(other.ca),
            cert: self.cert.or(other.cert),
            key: self.key.or(other.key),
            refused: [self.refused, other.refused].concat(),
        }
    }

    /// The mode that the options amount to: of two, the one that asks for more, except that off is
    /// off.
    fn settle(&self) -> Mode {
        if self.mode == Some(Mode::Disabled) || (self.mode.is_none() && self.on == Some(false)) {
            return Mode::Disabled;
        }
        let asked = [
            self.mode,
            self.verify.filter(|&verify| verify).map(|_| Mode::VerifyIdentity),
            self.ca.is_some().then_some(Mode::VerifyCa),
            (self.on == Some(true) || self.cert.is_some() || self.key.is_some())
                .then_some(Mode::Required),
        ];
        asked.into_iter().flatten().max().unwrap_or_default()
    }

    /// What to do for it.
    ///
    /// # Errors
    /// [`Error::Local`] with the name of an option that can't be followed, or a file that can't be
    /// read.
    pub fn resolve(self) -> Result<Tls> {
        let mode = self.settle();
        if mode == Mode::Disabled {
            return Ok(Tls::default());
        }
        if let Some(refused) = self.refused.first() {
            return Err(Error::Local(format!(
                "{refused}: this program's TLS library can't do that, and a connection without it \
                 would be weaker than asked for"
            )));
        }
        let identity = match (self.cert, self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => return Err(Error::Local("ssl-cert needs ssl-key".into())),
            (None, Some(_)) => return Err(Error::Local("ssl-key needs ssl-cert".into())),
        };
        let files = identity.iter().flat_map(|(cert, key)| [cert, key]).chain(&self.ca);
        for file in files {
            File::open(file).map_err(|e| Error::file(file, &e))?;
        }
        let ca = self.ca.map_or_else(system_authorities, Ok)?;
        Ok(Tls { mode, ca: Some(ca), identity })
    }
}

/// The system's authorities, where the user has named none.
fn system_authorities() -> Result<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_AUTHORITIES.iter().map(PathBuf::from);
    named.into_iter().chain(usual).find(|path| path.exists()).ok_or_else(|| {
        Error::Local(
            "no file of certificate authorities on this system: install the package \
             ca-certificates, or name a file with ssl-ca"
                .into(),
        )
    })
}

/// How to encrypt, all questions answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// How much is checked.
    pub mode: Mode,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// For the driver; `None` without encryption.
    pub fn options(&self) -> Option<SslOpts> {
        if self.mode == Mode::Disabled {
            return None;
        }
        let identity = self.identity.clone().map(|(cert, key)| ClientIdentity::new(cert, key));
        let options = SslOpts::default()
            .with_root_cert_path(self.ca.clone())
            .with_client_identity(identity)
            .with_danger_skip_domain_validation(self.mode < Mode::VerifyIdentity)
            .with_danger_accept_invalid_certs(self.mode < Mode::VerifyCa);
        Some(options)
    }

    /// Whether the certificate must name the host.
    pub fn names_host(&self) -> bool {
        self.mode == Mode::VerifyIdentity
    }

    /// Why encryption failed, if that is what the error is about.
    pub fn failure(&self, error: &mysql::Error) -> Option<String> {
        if self.mode == Mode::Disabled {
            return None;
        }
        let ca = self.ca.as_deref().unwrap_or(Path::new("")).display();
        let why = match error {
            mysql::Error::DriverError(mysql::DriverError::TlsNotSupported) => {
                return Some("TLS is asked for, and the server has none".into());
            }
            mysql::Error::TlsError(error) => error.to_string(),
            mysql::Error::IoError(error) if error.kind() == ErrorKind::InvalidData => {
                error.to_string()
            }
            mysql::Error::CodecError(error) => error.to_string(),
            _ => return None,
        };
        let hint = match () {
            () if why.contains("UnknownIssuer") => {
                format!(": its certificate is signed by no authority in {ca}")
            }
            () if why.contains("not valid for name") => {
                ": a certificate's names are its subjectAltName; the common name does not count"
                    .into()
            }
            () => String::new(),
        };
        Some(format!("TLS failed: {why}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(change: impl Fn(&mut Wish)) -> Wish {
        let mut wish = Wish::default();
        change(&mut wish);
        wish
    }

    #[test]
    fn options_of_both_clients_amount_to_a_mode() {
        let mode = |change: fn(&mut Wish)| wish(change).settle();
        assert_eq!(mode(|_| {}), Mode::Disabled);
        assert_eq!(mode(|wish| wish.on = Some(true)), Mode::Required);
        assert_eq!(mode(|wish| wish.cert = Some("c".into())), Mode::Required);
        assert_eq!(mode(|wish| wish.ca = Some("c".into())), Mode::VerifyCa);
        assert_eq!(mode(|wish| wish.verify = Some(true)), Mode::VerifyIdentity);
        assert_eq!(mode(|wish| wish.mode = Some(Mode::Preferred)), Mode::Preferred);
        assert_eq!(
            mode(|wish| (wish.mode, wish.ca) = (Some(Mode::Required), Some("c".into()))),
            Mode::VerifyCa
        );
        assert_eq!(
            mode(|wish| (wish.on, wish.ca) = (Some(false), Some("c".into()))),
            Mode::Disabled
        );
    }

    #[test]
    fn the_command_line_strengthens_and_switches_off_and_does_not_weaken_by_the_way() {
        let file = || wish(|wish| wish.mode = Some(Mode::VerifyIdentity));
        assert_eq!(wish(|wish| wish.on = Some(true)).or(file()).settle(), Mode::VerifyIdentity);
        assert_eq!(wish(|wish| wish.on = Some(false)).or(file()).settle(), Mode::Disabled);
        let required = wish(|wish| wish.mode = Some(Mode::Required)).or(file());
        assert_eq!(required.settle(), Mode::Required);
        assert_eq!(Wish::default().or(file()).settle(), Mode::VerifyIdentity);
    }

    #[test]
    fn encryption_that_the_command_line_asks_for_is_not_switched_off_by_a_file() {
        let files = [
            || wish(|wish| wish.on = Some(false)),
            || wish(|wish| wish.mode = Some(Mode::Disabled)),
            || wish(|wish| (wish.mode, wish.on) = (Some(Mode::Disabled), Some(false))),
        ];
        for file in files {
            let mode = |change: fn(&mut Wish)| wish(change).or(file()).settle();
            assert_eq!(mode(|wish| wish.on = Some(true)), Mode::Required);
            assert_eq!(mode(|wish| wish.cert = Some("c".into())), Mode::Required);
            assert_eq!(mode(|wish| wish.key = Some("k".into())), Mode::Required);
            assert_eq!(mode(|wish| wish.ca = Some("c".into())), Mode::VerifyCa);
            assert_eq!(mode(|wish| wish.verify = Some(true)), Mode::VerifyIdentity);
            assert_eq!(mode(|wish| wish.mode = Some(Mode::VerifyCa)), Mode::VerifyCa);
            assert_eq!(mode(|wish| wish.verify = Some(false)), Mode::Disabled, "asks for nothing");
            assert_eq!(mode(|_| {}), Mode::Disabled);
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_name_and_only_where_it_matters() {
        let with =
            |on| wish(|wish| (wish.on, wish.refused) = (on, vec!["a.cnf:3: ssl-crl".into()]));
        let error = with(Some(true)).resolve().unwrap_err();
        assert_eq!(error.code(), 8);
        assert!(error.to_string().starts_with("a.cnf:3: ssl-crl: "), "{error}");
        assert_eq!(with(Some(false)).resolve().unwrap(), Tls::default());
        let off = wish(|wish| wish.on = Some(false)).or(with(Some(true)));
        assert_eq!(off.resolve().unwrap(), Tls::default());
        let error = wish(|wish| wish.cert = Some("/c".into())).resolve().unwrap_err();
        assert_eq!(error.to_string(), "ssl-cert needs ssl-key");
        let error =
            wish(|wish| wish.ca = Some("/nonexistent/ca.pem".into())).resolve().unwrap_err();
        assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    }
}
