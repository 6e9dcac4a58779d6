//! The shared-memory transport for processes of one node.
