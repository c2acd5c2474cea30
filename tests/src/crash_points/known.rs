//! Faults of the server, which it shows with InnoDB as well.

/// A fault that is not the engine's.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The case.
    pub case: &'static str,
    /// A part of the violation's text.
    pub symptom: &'static str,
    /// What the server does wrong. Verified on InnoDB by `scripts/crash-points --engine InnoDB`.
    pub why: &'static str,
}

/// All of them.
pub const KNOWN: &[Known] = &[];

/// The known fault that explains a violation.
pub fn explain(case: &str, violation: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.case == case && violation.contains(known.symptom))
}
