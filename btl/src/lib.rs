//! The byte transfer layer: the contract every Gapless transport implements, with its conformance suite.
