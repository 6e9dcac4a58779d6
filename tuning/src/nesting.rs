//! The first error of a text, found before anything builds a tree of it. `layouts/src/text/nesting.rs` is a link to
//! this file.
//!
//! `toml_parser` and `toml_edit` call themselves for each value inside a value. Their own bounds lose count behind an
//! error, where the parser closes what was never opened. So nothing is entered any more behind the first error.

use std::cell::RefCell;
use toml_parser::lexer::Token;
use toml_parser::parser::{EventReceiver, ValidateWhitespace, parse_document};
use toml_parser::{ErrorSink, ParseError, Source, Span};

/// The first thing that is no TOML, or nests deeper than `depth_max`.
pub(super) fn first_error(
    source: Source<'_>,
    tokens: &[Token],
    depth_max: u32,
) -> Option<ParseError> {
    let first = RefCell::new(None);
    let mut nesting = Nesting { depth: 0, depth_max, first: &first };
    let mut checked = ValidateWhitespace::new(&mut nesting, source);
    parse_document(tokens, &mut checked, &mut FirstError(&first));
    first.into_inner()
}

struct FirstError<'e>(&'e RefCell<Option<ParseError>>);

impl ErrorSink for FirstError<'_> {
    fn report_error(&mut self, error: ParseError) {
        self.0.borrow_mut().get_or_insert(error);
    }
}

/// Enters no value behind the first error.
struct Nesting<'e> {
    depth: u32,
    depth_max: u32,
    first: &'e RefCell<Option<ParseError>>,
}

impl Nesting<'_> {
    fn enter(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        self.depth = self.depth.saturating_add(1);
        if self.depth > self.depth_max {
            error.report_error(ParseError::new("values nest too deep").with_unexpected(span));
        }
        self.first.borrow().is_none()
    }
}

impl EventReceiver for Nesting<'_> {
    fn inline_table_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        self.enter(span, error)
    }

    fn inline_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn array_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        self.enter(span, error)
    }

    fn array_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.depth = self.depth.saturating_sub(1);
    }
}
