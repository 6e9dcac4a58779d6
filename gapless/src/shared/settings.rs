//! What collectives of new communicators go by.

use super::Shared;
use gapless_coll::runtime::Component;
use gapless_tuning::coll::Table;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Shared {
    /// By which collectives of new communicators choose their algorithms.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_table(&self, table: Table) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// What makes modules for collectives of new communicators.
    pub(crate) fn components(&self) -> Arc<[Arc<dyn Component>]> {
        Arc::clone(&self.components.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_components(&self, all: Vec<Arc<dyn Component>>) {
        *self.components.write().unwrap_or_else(PoisonError::into_inner) = all.into();
    }

    pub(crate) fn checks_collectives(&self) -> bool {
        self.checks_collectives.load(Ordering::Relaxed)
    }

    pub(crate) fn check_collectives(&self, yes: bool) {
        self.checks_collectives.store(yes, Ordering::Relaxed);
    }
}
