//! Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0 for a client that asks for it.
//!
//! | | Prometheus 0.0.4 | OpenMetrics 1.0 |
//! |---|---|---|
//! | name of a counter's family | with `_total` | without |
//! | kind of `…_build_info` | gauge | info, the family without `_info` |
//! | last line | | `# EOF` |
//!
//! All samples of a family stand together, whichever server they are of.

use std::fmt::{Display, Write};

/// Before each name.
const PREFIX: &str = "tidepool_watch_";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// What a client asks for with its `Accept` header. Prometheus names both, OpenMetrics first.
    pub fn wanted(accept: Option<&str>) -> Format {
        match accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

#[derive(Debug)]
struct Family {
    /// Without prefix and without `_total` or `_info`.
    name: String,
    kind: Kind,
    help: String,
    /// Labels and value.
    samples: Vec<(String, String)>,
}

/// Families in the order in which they were first named.
#[derive(Debug, Default)]
pub struct Exposition {
    families: Vec<Family>,
    /// Of every sample that is added.
    labels: String,
}

impl Exposition {
    /// Labels of the samples that are added from now on.
    pub fn set_labels(&mut self, labels: &[(&str, &str)]) {
        let pairs: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        self.labels = pairs.join(",");
    }

    /// A figure that isn't known is left out.
    pub fn gauge(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.add(Kind::Gauge, name, help, value.map(|value| (String::new(), value.to_string())));
    }

    /// The name without its `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.add(Kind::Counter, name, help, value.map(|value| (String::new(), value.to_string())));
    }

    /// A gauge with one more label.
    pub fn labelled(&mut self, name: &str, help: &str, label: (&str, &str), value: impl Display) {
        let label = format!(",{}=\"{}\"", label.0, escaped(label.1));
        self.add(Kind::Gauge, name, help, Some((label, value.to_string())));
    }

    /// The name without its `_info`: what doesn't change, in labels.
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        let pair = |(name, value): &(&str, &str)| format!(",{name}=\"{}\"", escaped(value));
        let labels: String = labels.iter().map(pair).collect();
        self.add(Kind::Info, name, help, Some((labels, "1".into())));
    }

    fn add(&mut self, kind: Kind, name: &str, help: &str, sample: Option<(String, String)>) {
        let Some((more, value)) = sample else { return };
        let labels = format!("{}{more}", self.labels);
        let sample = (labels.trim_start_matches(',').to_owned(), value);
        match self.families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.families.push(Family {
                name: name.to_owned(),
                kind,
                help: help.to_owned(),
                samples: vec![sample],
            }),
        }
    }

    /// The whole text.
    pub fn render(&self, format: Format) -> String {
        let mut text = String::new();
        for family in &self.families {
            let (suffix, kind) = match (family.kind, format) {
                (Kind::Gauge, _) => ("", "gauge"),
                (Kind::Counter, _) => ("_total", "counter"),
                (Kind::Info, Format::Prometheus) => ("_info", "gauge"),
                (Kind::Info, Format::OpenMetrics) => ("_info", "info"),
            };
            let sample_name = format!("{PREFIX}{}{suffix}", family.name);
            let name = match format {
                Format::Prometheus => sample_name.clone(),
                Format::OpenMetrics => format!("{PREFIX}{}", family.name),
            };
            // OpenMetrics escapes quotes in help texts too; there are none.
            let _ = writeln!(text, "# HELP {name} {}", family.help);
            let _ = writeln!(text, "# TYPE {name} {kind}");
            for (labels, value) in &family.samples {
                let labels =
                    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "{sample_name}{labels} {value}");
            }
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition() -> Exposition {
        let mut exposition = Exposition::default();
        exposition.info("build", "The program.", &[("version", "1.2")]);
        for server in ["a", "b\"\\"] {
            exposition.set_labels(&[("server", server)]);
            exposition.counter("questions", "Statements.", Some(u64::MAX));
            exposition.gauge("up", "Whether it answers.", Some(1));
            exposition.gauge("unknown", "Not known.", None::<u64>);
        }
        exposition
    }

    #[test]
    fn families_stand_together_in_both_formats() {
        assert_eq!(
            exposition().render(Format::OpenMetrics),
            "# HELP tidepool_watch_build The program.\n\
             # TYPE tidepool_watch_build info\n\
             tidepool_watch_build_info{version=\"1.2\"} 1\n\
             # HELP tidepool_watch_questions Statements.\n\
             # TYPE tidepool_watch_questions counter\n\
             tidepool_watch_questions_total{server=\"a\"} 18446744073709551615\n\
             tidepool_watch_questions_total{server=\"b\\\"\\\\\"} 18446744073709551615\n\
             # HELP tidepool_watch_up Whether it answers.\n\
             # TYPE tidepool_watch_up gauge\n\
             tidepool_watch_up{server=\"a\"} 1\n\
             tidepool_watch_up{server=\"b\\\"\\\\\"} 1\n\
             # EOF\n"
        );
        let text = exposition().render(Format::Prometheus);
        assert!(text.contains("# TYPE tidepool_watch_questions_total counter\n"), "{text}");
        assert!(text.contains("# TYPE tidepool_watch_build_info gauge\n"), "{text}");
        assert!(!text.contains("EOF"), "{text}");
    }

    #[test]
    fn a_client_gets_the_format_that_it_asks_for() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::wanted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::wanted(Some("*/*")), Format::Prometheus);
        assert_eq!(Format::wanted(None), Format::Prometheus);
    }
}
