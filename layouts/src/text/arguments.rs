//! The arguments of one constructor call.

use super::{Source, TextError, TextFault};
use gapless_dtype::{Distribution, Order};
use toml_edit::{Item, TableLike, Value};

/// What a block size is called if MPI's default is meant.
const DEFAULT: &str = "default";

/// A constructor's table.
pub(super) struct Arguments<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) constructor: &'static str,
    pub(super) table: &'a dyn TableLike,
}

impl Arguments<'_> {
    /// What errors call an argument.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.constructor)
    }

    /// An argument that has no default.
    pub(super) fn item(&self, key: &'static str) -> Result<&Item, TextError> {
        self.table.get(key).ok_or_else(|| {
            let span = self.table.iter().find_map(|(key, _)| self.table.key(key)?.span());
            self.source.wrong(span, TextFault::Missing { place: self.constructor.to_owned(), key })
        })
    }

    pub(super) fn unsigned(&self, key: &'static str) -> Result<u64, TextError> {
        self.source.unsigned(&self.path(key), self.item(key)?)
    }

    pub(super) fn signed(&self, key: &'static str) -> Result<i64, TextError> {
        let item = self.item(key)?;
        let wanted = "a whole number";
        item.as_integer().ok_or_else(|| self.source.mistyped(&self.path(key), item, wanted))
    }

    pub(super) fn all_unsigned(&self, key: &'static str) -> Result<Vec<u64>, TextError> {
        self.list(key, "a list of whole numbers from 0 on", |value| {
            value.as_integer().and_then(|number| u64::try_from(number).ok())
        })
    }

    pub(super) fn all_signed(&self, key: &'static str) -> Result<Vec<i64>, TextError> {
        self.list(key, "a list of whole numbers", Value::as_integer)
    }

    /// As [`all_unsigned`](Self::all_unsigned), of an argument that may be left out.
    pub(super) fn some_unsigned(&self, key: &'static str) -> Result<Option<Vec<u64>>, TextError> {
        self.given(key, |it| it.all_unsigned(key))
    }

    pub(super) fn order(&self) -> Result<Order, TextError> {
        let Some(item) = self.table.get("order") else { return Ok(Order::C) };
        let name = item.as_str().map(str::to_ascii_lowercase);
        match name.as_deref() {
            Some("c") => Ok(Order::C),
            Some("fortran") => Ok(Order::Fortran),
            _ => Err(self.source.mistyped(&self.path("order"), item, "\"c\" or \"fortran\"")),
        }
    }

    pub(super) fn distribs(&self) -> Result<Option<Vec<Distribution>>, TextError> {
        let wanted = "a list of \"block\", \"cyclic\" and \"none\"";
        self.given("distribs", |it| {
            it.list("distribs", wanted, |value| match value.as_str()? {
                "block" => Some(Distribution::Block),
                "cyclic" => Some(Distribution::Cyclic),
                "none" => Some(Distribution::None),
                _ => None,
            })
        })
    }

    pub(super) fn dargs(&self) -> Result<Option<Vec<Option<u64>>>, TextError> {
        let wanted = "a list of whole numbers from 1 on and \"default\"";
        self.given("dargs", |it| {
            it.list("dargs", wanted, |value| match value.as_str() {
                Some(DEFAULT) => Some(None),
                _ => u64::try_from(value.as_integer()?).ok().map(Some),
            })
        })
    }

    fn given<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Self) -> Result<T, TextError>,
    ) -> Result<Option<T>, TextError> {
        self.table.get(key).map(|_| read(self)).transpose()
    }

    fn list<T>(
        &self,
        key: &'static str,
        wanted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, TextError> {
        let item = self.item(key)?;
        let path = self.path(key);
        let array = item.as_array().ok_or_else(|| self.source.mistyped(&path, item, wanted))?;
        let entries = array.iter().enumerate().map(|(at, value)| {
            read(value)
                .ok_or_else(|| self.source.mistyped_value(&format!("{path}[{at}]"), value, wanted))
        });
        entries.collect()
    }
}
