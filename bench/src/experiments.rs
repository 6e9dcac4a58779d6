//! The list of experiments. A file here is one; its line below makes it a subcommand.
//!
//! `figures` gives an experiment its options. The experiment makes processes or memory by a driver of this crate, checks
//! bytes, takes samples, and gives rows; `draw` makes pictures of them.
//!
//! - one process: `pack`, `transfer`, `position`, `matching`; `gpu`, `reduce_gpu`, `wu6`, `wu7`, `wu8`, `wu13` on a GPU;
//! - messages of two processes: `oneway`, `acc2`; `acc_matrix` between memories of any kind, `acc_host` by the host's
//!   memory, `acc3` by packet, `acc6` beside the same by hand, `acc7` out of OpenCL contexts that come and go; `p2p`,
//!   `p2p_matrix`, `matrices`, `wu15`, `regret`, `worker` between GPUs; `hosts` and `rails` between hosts;
//! - windows: `osc`, `osc_gpu`; pages at indices: `pages`; shardings: `reshard`;
//! - collectives: `coll`, `scale`; `coll_gpu`, `coll_layouts` on a stream; `faraji1`, `faraji2`, `heads` on shared
//!   GPUs; `deaths` when a rank is killed;
//! - an application: `acc8` (and `acc9`), an epidemic on shared GPUs;
//! - tasks: `xtq7`, `xtq8`, `xtq9`, `xtq10` on the simulated machine, `xtq_hw` on a GPU.
//!
//! `wu…` are figures of Wu et al. 2016, `faraji…` of Faraji and Afsahi 2015, `xtq…` of LeBeane et al. 2016,
//! `acc…` of Aji et al. 2012.

use crate::experiment::ExperimentEntry;

/// Declares experiments with messages between two processes, a row each: by which driver of `p2p`, the plan of messages
/// and what is said below their table, what is added to the findings, the picture, and the table for documents.
macro_rules! messages {
    ($($experiment:ident $name:literal $about:literal: $driver:ident($plan:expr, $notes:expr) $($then:ident)?,
        $draw:ident($title:literal), $summary:path;)*) => {$(
        #[doc = $about]
        pub struct $experiment;

        impl crate::experiment::Experiment for $experiment {
            type Options = $driver::Options;

            const NAME: &'static str = $name;
            const ABOUT: &'static str = $about;

            fn run(
                options: &Self::Options,
                common: &crate::experiment::Common,
            ) -> Result<crate::experiment::Findings, crate::error::Failure> {
                let findings = $driver::run(Self::NAME, options, common, $plan, $notes)?;
                $(let findings = $then(findings);)?
                Ok(findings)
            }

            fn rank(
                options: &Self::Options,
                common: &crate::experiment::Common,
                rank: &crate::processes::RankOf,
            ) -> Result<(), crate::error::Failure> {
                $driver::rank(options, common, rank, $plan)
            }

            fn draw(
                report: &gapless_report::Report,
            ) -> Result<Vec<crate::experiment::Drawing>, gapless_report::PlotError> {
                $draw($title, report)
            }

            fn summary(report: &gapless_report::Report) -> String {
                $summary(report)
            }
        }
    )*};
}

/// Declares the modules and lists their experiments, in the order in which `figures all` runs them.
macro_rules! experiments {
    ($($module:ident :: $experiment:ident $(+ $more:ident)*),* $(,)?) => {
        $(pub mod $module;)*

        /// Every experiment.
        pub const ALL: &[ExperimentEntry] = &[$(
            ExperimentEntry::of::<$module::$experiment>(),
            $(ExperimentEntry::of::<$module::$more>(),)*
        )*];
    };
}

experiments! {
    pack::Pack,
    transfer::Transfer,
    position::Position,
    matching::Matching,
    oneway::OneWay,
    acc2::Acc2,
    osc::Osc,
    osc_gpu::OscGpu,
    pages::Pages,
    reshard::Reshard,
    gpu::Gpu,
    reduce_gpu::ReduceGpu,
    wu6::Wu6,
    wu7::Wu7,
    wu8::Wu8,
    wu13::Wu13 + Wu14,
    acc_matrix::AccMatrix,
    acc_host::AccHost,
    p2p::P2p,
    p2p_matrix::P2pMatrix,
    matrices::Wu9 + Wu10 + Wu10Net + Wu11 + Wu11Net + Wu12 + Wu12Net,
    wu15::Wu15 + Wu15Net,
    regret::Regret,
    acc3::Acc3,
    acc6::Acc6,
    acc7::Acc7,
    hosts::Hosts,
    rails::Rails,
    scale::Scale,
    coll::Coll,
    coll_gpu::CollGpu,
    coll_layouts::CollLayouts,
    deaths::Deaths,
    faraji1::Faraji1,
    faraji2::Faraji2,
    heads::Heads,
    acc8::Acc8 + Acc9,
    worker::Worker,
    xtq7::Xtq7,
    xtq8::Xtq8,
    xtq9::Xtq9,
    xtq10::Xtq10,
    xtq_hw::XtqHw,
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn names_are_their_own() {
        let mut names: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        names.extend(["all", "list", "page", "summary", "help"]);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in ALL {
            entry.command().debug_assert();
            assert!(!entry.about.is_empty());
        }
    }
}
