//! What moves and combines bytes by layout: packing engines and reducers.
