//! One schema, table and plot for everything Gapless measures.
