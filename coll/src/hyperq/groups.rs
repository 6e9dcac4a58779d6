//! Which ranks have their buffers on one GPU, and who of them works for the others.

/// Ranks whose buffers lie on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whose kernels and copies work on the buffers of all.
    pub gpu_leader: usize,
    /// All of them, in their order; the GPU leader, too.
    pub ranks: Vec<usize>,
}

/// The groups of ranks with these GPUs, in the order of their first ranks. The leader of the call is its group's GPU
/// leader, the first rank is that of any other. All ranks come to the same.
#[must_use]
pub fn groups(gpus: &[u128], leader: usize) -> Vec<Group> {
    let mut found: Vec<(u128, Group)> = Vec::new();
    for (rank, gpu) in gpus.iter().enumerate() {
        match found.iter_mut().find(|(known, _)| known == gpu) {
            Some((_, group)) => {
                group.ranks.push(rank);
                if rank == leader {
                    group.gpu_leader = rank;
                }
            }
            None => found.push((*gpu, Group { gpu_leader: rank, ranks: vec![rank] })),
        }
    }
    found.into_iter().map(|(_, group)| group).collect()
}

/// Whether elements that are combined group by group are combined in the order of the ranks.
#[must_use]
pub fn in_order(groups: &[Group]) -> bool {
    groups.iter().flat_map(|group| &group.ranks).is_sorted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_gpus_and_the_leader_is_a_head() {
        let of = |gpu_leader, ranks: &[usize]| Group { gpu_leader, ranks: ranks.to_vec() };
        assert_eq!(groups(&[7; 3], 1), [of(1, &[0, 1, 2])]);
        let two = groups(&[7, 7, 9, 9], 3);
        assert_eq!(two, [of(0, &[0, 1]), of(3, &[2, 3])]);
        assert!(in_order(&two));
        let woven = groups(&[9, 7, 9, 7, 5], 0);
        assert_eq!(woven, [of(0, &[0, 2]), of(1, &[1, 3]), of(4, &[4])]);
        assert!(!in_order(&woven));
    }
}
