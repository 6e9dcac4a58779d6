//! The generators as proptest strategies that shrink by simplifying the constructor tree.

use std::fmt;

use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::generate::{Params, random_datatype};
use super::rng::Rng;
use super::shrink::simpler;
use super::tree::describe;
use crate::{Datatype, Layout};

/// Random datatypes of every constructor, depth 1 to 5; bytes may occur more than once, so they
/// are fit for packing only. [`any_disjoint_datatype`] can also be unpacked.
pub fn any_datatype() -> AnyDatatype {
    datatypes(Params::default())
}

/// Random datatypes in which no byte occurs twice, in up to
/// [`INSTANCES_MAX`](super::INSTANCES_MAX) instances.
pub fn any_disjoint_datatype() -> AnyDatatype {
    datatypes(Params::disjoint())
}

/// Random datatypes as `params` describe.
pub fn datatypes(params: Params) -> AnyDatatype {
    AnyDatatype { params }
}

/// Random committed layouts, of the types of [`any_disjoint_datatype`].
pub fn any_layout() -> impl Strategy<Value = Layout> {
    any_disjoint_datatype()
        .prop_filter_map("a type that commits", |datatype| datatype.commit().ok())
}

/// The strategy behind [`any_datatype`] and its kin.
#[derive(Clone)]
pub struct AnyDatatype {
    params: Params,
}

impl fmt::Debug for AnyDatatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyDatatype").field(&self.params).finish()
    }
}

impl Strategy for AnyDatatype {
    type Tree = DatatypeTree;
    type Value = Datatype;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let seed = proptest::num::u64::ANY.new_tree(runner)?.current();
        let first = random_datatype(&mut Rng::new(seed), &self.params);
        Ok(DatatypeTree::new(first, self.params.clone()))
    }
}

/// A failing datatype on its way to a simpler one.
pub struct DatatypeTree {
    params: Params,
    /// The simplest type known to fail.
    failing: Datatype,
    /// Simpler candidates, the next one last.
    candidates: Option<Vec<Datatype>>,
    current: Datatype,
}

impl DatatypeTree {
    fn new(first: Datatype, params: Params) -> DatatypeTree {
        DatatypeTree { params, failing: first.clone(), candidates: None, current: first }
    }

    fn advance(&mut self) -> bool {
        let (failing, params) = (&self.failing, &self.params);
        let candidates = self.candidates.get_or_insert_with(|| {
            let mut found = simpler(failing);
            found.retain(|candidate| params.admit(candidate));
            found.reverse();
            found
        });
        match candidates.pop() {
            Some(next) => {
                self.current = next;
                true
            }
            None => {
                self.current = self.failing.clone();
                false
            }
        }
    }
}

impl fmt::Debug for DatatypeTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatatypeTree").field(&describe(&self.current)).finish()
    }
}

impl ValueTree for DatatypeTree {
    type Value = Datatype;

    fn current(&self) -> Datatype {
        self.current.clone()
    }

    fn simplify(&mut self) -> bool {
        // The current type fails: go on from it.
        self.failing = self.current.clone();
        self.candidates = None;
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        // The current type passes: try the next candidate of the one that fails.
        self.advance()
    }
}
