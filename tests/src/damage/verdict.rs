//! What a trial is called, and what is wrong with it.

use super::harm::Damage;

/// What became of the server and of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All rows are there, and no statement failed.
    Nothing,
    /// The server did not start.
    StartRefused,
    /// Every query of some table failed; all others are whole.
    TableRefused,
    /// Some queries of a table failed; what others gave is right.
    ErrorOnRead,
    /// All rows were read, but CHECK TABLE or a statement that writes failed.
    ErrorLater,
    /// Rows differ from the truth, and no message says so.
    WrongRows,
    /// Rows differ from the truth, and a message names the damaged file.
    WrongAndSaid,
    /// The server did not answer in time.
    Hang,
    /// The server ended by a signal, or panicked.
    Crash,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 9] = [
        Verdict::Nothing,
        Verdict::StartRefused,
        Verdict::TableRefused,
        Verdict::ErrorOnRead,
        Verdict::ErrorLater,
        Verdict::WrongRows,
        Verdict::WrongAndSaid,
        Verdict::Hang,
        Verdict::Crash,
    ];

    /// The head of its column.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Nothing => "nothing lost",
            Verdict::StartRefused => "start refused",
            Verdict::TableRefused => "table refused",
            Verdict::ErrorOnRead => "error on read",
            Verdict::ErrorLater => "error later",
            Verdict::WrongRows => "wrong rows, silently",
            Verdict::WrongAndSaid => "wrong rows, reported",
            Verdict::Hang => "hang",
            Verdict::Crash => "crash",
        }
    }
}

/// What a trial gave.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it is called.
    pub verdict: Verdict,
    /// The errors that statements gave, then the lines of the error log.
    pub messages: Vec<String>,
    /// What is wrong with the server's answer; none: all that is demanded is met.
    pub faults: Vec<String>,
}

impl Report {
    pub fn line(&self) -> String {
        match self.faults.is_empty() {
            true => self.verdict.name().into(),
            false => format!("{}: FAULT: {}", self.verdict.name(), self.faults.join("; ")),
        }
    }
}

/// What a message must advise, one of them.
const ADVICE: [&str; 9] = [
    "restore ",
    "put the file back",
    "put it back",
    "put back",
    "drop the table",
    "remove ",
    "overwrite ",
    "tidepool_force_recovery",
    "tidepool salvage",
];

/// What is missing in the messages about a damage that was refused.
pub fn unsaid(damage: &Damage, page_size: u32, messages: &[String]) -> Vec<String> {
    let name = damage.file.rsplit('/').next().expect("a path has a last part");
    let about: Vec<&String> = messages.iter().filter(|text| text.contains(name)).collect();
    if about.is_empty() {
        return vec![format!("no message names {name}")];
    }
    let mut missing = Vec::new();
    let pages = damage.pages(page_size);
    let names_page = |page: &u64| {
        let (word, of) = (format!("page {page} "), format!("page {page}:"));
        about.iter().any(|text| text.contains(&word) || text.contains(&of))
    };
    // Page 0 is the file's header: what is wrong with it is wrong with the file.
    if !pages.is_empty() && !pages.contains(&0) && !pages.iter().any(names_page) {
        missing.push(format!("no message names page {pages:?} of {name}"));
    }
    if !about.iter().any(|text| ADVICE.iter().any(|advice| text.contains(advice))) {
        missing.push(format!("no message about {name} says what to do"));
    }
    missing
}
