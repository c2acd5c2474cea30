// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The engine's log lines go to the server's error log.
//!
//! The engine logs through `tracing`. The subscriber here takes errors, warnings and notes (spans
//! are not used), writes the message and then the fields as `name=value`, and hands the line to the
//! shim.

use std::ffi::{c_char, c_int};
use std::fmt::{self, Write as _};
use std::sync::OnceLock;

use tracing::field::{Field, Visit};
use tracing::span;

use crate::constants::{TP_LOG_ERROR, TP_LOG_NOTE, TP_LOG_WARNING};

type LogFunction = extern "C" fn(c_int, *const c_char, usize);
static LOG: OnceLock<LogFunction> = OnceLock::new();

#[derive(Clone, Copy)]
pub(crate) enum Level {
    Error = TP_LOG_ERROR as isize,
    Warning = TP_LOG_WARNING as isize,
    Note = TP_LOG_NOTE as isize,
}

pub(crate) fn line(level: Level, text: &str) {
    if let Some(log) = LOG.get() {
        log(level as c_int, text.as_ptr().cast(), text.len());
    }
}

/// Sets where log lines go; see bridge.h.
#[unsafe(no_mangle)]
pub extern "C" fn tp_set_log(log: LogFunction) {
    crate::boundary::guard_or((), || {
        if LOG.set(log).is_ok() {
            // Another subscriber can only be there if the plugin is loaded twice: keep that one.
            let _ = tracing::subscriber::set_global_default(ServerLog);
            // The default hook writes to stderr with a location and no prefix; guard() logs the
            // panic as one line.
            std::panic::set_hook(Box::new(|info| {
                line(Level::Error, &format!("panic: {info}"));
            }));
        }
    });
}

struct ServerLog;

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl tracing::Subscriber for ServerLog {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Line::default();
        event.record(&mut text);
        text.message.push_str(&text.fields);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            _ => Level::Note,
        };
        line(level, &text.message);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
