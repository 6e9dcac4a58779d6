//! Non-contiguous data layouts: MPI derived datatypes, committed layouts and the convertor.
