//! What is wrong with a text, before it is parsed: `toml_edit` calls itself for each value inside a value, and its own
//! bound loses count behind an error, where it closes what was never opened.

use std::cell::RefCell;
use toml_parser::parser::{EventReceiver, ValidateWhitespace, parse_document};
use toml_parser::{ErrorSink, ParseError, Source, Span};

/// How deep values may nest; `toml_edit`'s own bound.
const DEPTH_MAX: u32 = 80;

/// The first thing that is no TOML, or nests too deep.
pub(super) fn first_error(text: &str) -> Option<ParseError> {
    let (source, first) = (Source::new(text), RefCell::new(None));
    let mut nesting = Nesting { depth: 0, first: &first };
    let mut checked = ValidateWhitespace::new(&mut nesting, source);
    parse_document(&source.lex().into_vec(), &mut checked, &mut FirstError(&first));
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
    first: &'e RefCell<Option<ParseError>>,
}

impl Nesting<'_> {
    fn enter(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        self.depth = self.depth.saturating_add(1);
        if self.depth > DEPTH_MAX {
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
