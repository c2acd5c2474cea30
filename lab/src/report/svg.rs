//! Text of Scalable Vector Graphics: a few shapes, escaped, with classes for the style sheet to
//! colour.

use std::fmt::Write;

/// Colours of a scheme: one hue a quantity, distinct to colour-blind readers, too (after Okabe and
/// Ito).
struct Scheme {
    background: &'static str,
    ink: &'static str,
    soft: &'static str,
    grid: &'static str,
    band: &'static str,
    /// The colours "a" to "e".
    hues: [&'static str; 5],
}

const LIGHT: Scheme = Scheme {
    background: "#ffffff",
    ink: "#1f2933",
    soft: "#616e7c",
    grid: "#e4e7eb",
    band: "#f0f4f8",
    hues: ["#0072b2", "#d55e00", "#009e73", "#b5578f", "#8a6d00"],
};

const DARK: Scheme = Scheme {
    background: "#14181d",
    ink: "#e4e7eb",
    soft: "#9aa5b1",
    grid: "#2d343c",
    band: "#1d232a",
    hues: ["#56b4e9", "#ff9d5c", "#35c99b", "#e6a0c4", "#e8cf5a"],
};

impl Scheme {
    /// Spelt out rather than by CSS variables, which renderers other than browsers don't know.
    fn rules(&self) -> String {
        let mut rules = format!(
            ".chart{{background:{0}}}.chart .back{{fill:{0}}}.chart text{{fill:{1}}}.chart text.soft{{fill:{2}}}\
             .chart .grid{{stroke:{3}}}.chart .axis,.chart .event{{stroke:{2}}}.chart .band{{fill:{4}}}",
            self.background, self.ink, self.soft, self.grid, self.band
        );
        for (name, hue) in ('a'..).zip(self.hues) {
            let _ = write!(rules, ".chart .{name}{{stroke:{hue}}}.chart .f{name}{{fill:{hue}}}");
        }
        rules
    }
}

/// The styles of charts, for a page and for a separate file; the reader's `prefers-color-scheme`
/// chooses.
pub fn style() -> String {
    format!(
        ".chart{{font-family:system-ui,'DejaVu Sans',sans-serif}}.chart text{{font-size:12px}}.chart text.soft{{font-size:11px}}\
         .chart text.title{{font-size:14px;font-weight:600}}.chart .grid,.chart .axis,.chart .event{{stroke-width:1}}\
         .chart .event{{stroke-dasharray:3 3}}.chart .line{{fill:none;stroke-width:1.6;stroke-linejoin:round}}\
         .chart .thin{{stroke-width:1.2;stroke-dasharray:4 3}}.chart .area{{opacity:.18;stroke:none}}\n{}\n\
         @media (prefers-color-scheme:dark){{{}}}\n",
        LIGHT.rules(),
        DARK.rules()
    )
}

/// A picture in the making.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text sits relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred there.
    Middle,
    End,
}

impl Svg {
    /// An empty picture of this many pixels.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// A rectangle.
    pub fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        );
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let path: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        let _ = writeln!(self.body, r#"<polyline class="{class}" points="{}"/>"#, path.trim_end());
    }

    /// The area between points and a base line.
    pub fn area(&mut self, class: &str, points: &[(f64, f64)], base: f64) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let path: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        let _ = writeln!(
            self.body,
            r#"<polygon class="{class}" points="{:.1},{base:.1} {path}{:.1},{base:.1}"/>"#,
            first.0, last.0
        );
    }

    /// A small dot, with a text that appears when it is pointed at.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tip: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="{radius:.1}"><title>{}</title></circle>"#,
            at.0,
            at.1,
            escape(tip)
        );
    }

    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }

    /// The picture as part of an HTML page that has [`style`]; `description` is for who can't see
    /// it.
    pub fn inline(&self, description: &str) -> String {
        format!(
            "<svg class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\">\n{}</svg>\n",
            escape(description),
            self.width,
            self.height,
            self.width,
            self.height,
            self.body
        )
    }

    /// The picture as a separate file.
    pub fn standalone(&self, description: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" \
             width=\"{}\" height=\"{}\">\n<style>{}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            escape(description),
            self.width,
            self.height,
            self.width,
            self.height,
            style(),
            self.body
        )
    }
}

/// Text for HTML and SVG, in attributes too.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Not allowed in XML in any form.
            character if character.is_control() && character != '\n' => {}
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_stays_text() {
        assert_eq!(escape("<a href='x'>\"&\u{1b}"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
        let mut svg = Svg::new(10.0, 10.0);
        svg.text("title", (0.0, 0.0), Anchor::Start, "</text><script>");
        assert!(!svg.standalone("\"><script>").contains("<script>"));
    }
}
