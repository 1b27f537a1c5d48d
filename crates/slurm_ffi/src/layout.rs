//! Where the fields of Slurm's structures stand, for the exact release.
//!
//! The facts are the text tables in `data/`, built into the plugin, and a file of the same
//! format that a site may add for a release newer than the table.
//!
//! A table has every field of a structure, so that it also says how large the structure is: see [`crate::natural`].

use std::collections::HashMap;

use crate::messages;
use crate::natural::{self, Place};

use crate::release::Release;

const LAYOUTS: &str = include_str!("../data/layouts.tsv");
const DERIVED: &str = include_str!("../data/derived.tsv");
const VERSIONS: &str = include_str!("../data/versions.txt");

/// Name of the site's own table, beside slurm.conf.
pub const SITE_FILE: &str = "gpuos-layouts.tsv";

type Offsets = HashMap<(String, String), Place>;

/// The fields of one release: (struct, field) to offset in bytes.
#[derive(Clone)]
pub struct Fields {
    release: Release,
    offsets: Offsets,
}

impl Fields {
    /// The release that they are of.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The fields of exactly `release`: from the site's table if that has rows for it, else from
    /// the built-in one. The error is a sentence that says what is missing or damaged.
    pub fn of(release: Release, site: Option<&str>) -> Result<Fields, String> {
        if let Some(text) = site {
            let offsets = rows(text, release).map_err(|e| format!("{SITE_FILE}: {e}"))?;
            if !offsets.is_empty() {
                return Ok(Fields { release, offsets });
            }
        }
        if VERSIONS
            .lines()
            .any(|line| Release::parse(line) == Some(release))
        {
            return Ok(Fields {
                release,
                offsets: rows(LAYOUTS, release)?,
            });
        }
        if let Some(offsets) = derived(release)? {
            return Ok(Fields { release, offsets });
        }
        Err(messages::unknown_release(release, SITE_FILE).into())
    }

    /// Offset of a field in bytes.
    pub fn offset(&self, structure: &str, field: &str) -> Result<usize, String> {
        self.offsets
            .get(&(structure.to_owned(), field.to_owned()))
            .map(|place| place.offset as usize)
            .ok_or_else(|| messages::no_offset(structure, field, self.release).into())
    }

    /// Size of a structure in bytes, which its fields add up to. The error says where the rows do not describe
    /// what a C compiler makes of a structure.
    pub fn size(&self, structure: &str) -> Result<usize, String> {
        let mut places: Vec<(&str, Place)> = self
            .offsets
            .iter()
            .filter(|((owner, _), _)| owner == structure)
            .map(|((_, field), place)| (field.as_str(), *place))
            .collect();
        natural::size(&mut places)
            .map_err(|why| messages::rows_misfit(structure, self.release, why).into())
    }

    /// The fields of a structure, in their order.
    pub fn names(&self, structure: &str) -> Vec<String> {
        let mut all: Vec<(u32, &String)> = self
            .offsets
            .iter()
            .filter(|((owner, _), _)| owner == structure)
            .map(|((_, field), place)| (place.offset, field))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, field)| field.clone()).collect()
    }

    /// Puts one field elsewhere, or the field with all that stand after it: for tests of the checks.
    pub fn shift(&mut self, structure: &str, field: &str, bytes: i64, rest: bool) {
        let key = (structure.to_owned(), field.to_owned());
        let Some(from) = self.offsets.get(&key).map(|place| place.offset) else {
            return;
        };
        for ((owner, name), place) in &mut self.offsets {
            if owner == structure && (name == field || rest && place.offset >= from) {
                place.offset = (i64::from(place.offset) + bytes).clamp(0, 65_536) as u32;
            }
        }
    }

    /// As a compiler would with `bytes` more before a field, or with the field before it gone where that has so many
    /// and `keep` does not want it: what follows moves as far as it must to stay aligned. For tests, as above.
    /// Returns whether there was something to do.
    pub fn recompile(
        &mut self,
        structure: &str,
        field: &str,
        bytes: i64,
        keep: impl Fn(&str) -> bool,
    ) -> bool {
        let key = |name: &str| (structure.to_owned(), name.to_owned());
        let mut names = self.names(structure);
        let Some(at) = names.iter().position(|name| name == field) else {
            return false;
        };
        if bytes > 0 {
            let new = Place {
                offset: 0,
                size: bytes as u32,
                scalar: true,
            };
            names.insert(at, "(new)".to_owned());
            self.offsets.insert(key("(new)"), new);
        } else {
            let Some(gone) = at.checked_sub(1).map(|before| names[before].clone()) else {
                return false;
            };
            if i64::from(self.offsets[&key(&gone)].size) != -bytes || keep(&gone) {
                return false;
            }
            names.remove(at - 1);
            self.offsets.remove(&key(&gone));
        }
        let mut end = 0_u32;
        for name in names {
            if let Some(place) = self.offsets.get_mut(&key(&name)) {
                let aligned = if place.scalar { place.size } else { 4 };
                place.offset = end.next_multiple_of(aligned);
                end = place.end();
            }
        }
        true
    }

    /// Has two fields change places, where they are equally large. For tests, as above.
    pub fn swap(&mut self, structure: &str, one: &str, other: &str) -> bool {
        let key = |name: &str| (structure.to_owned(), name.to_owned());
        let places = (self.offsets.get(&key(one)), self.offsets.get(&key(other)));
        let (Some(&a), Some(&b)) = places else {
            return false;
        };
        if a.size != b.size || a.scalar != b.scalar {
            return false;
        }
        self.offsets.insert(key(one), b);
        self.offsets.insert(key(other), a);
        true
    }
}

fn rows(text: &str, release: Release) -> Result<Offsets, String> {
    let mut offsets = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') || line.starts_with("struct\t") {
            continue;
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let bad = || format!("line {} is damaged: {line:.80}", number + 1);
        let [structure, field, offset, size, ctype, first, last] = columns[..] else {
            return Err(bad());
        };
        let first = Release::parse(first).ok_or_else(bad)?;
        let last = Release::parse(last).ok_or_else(bad)?;
        let offset: u32 = offset.parse().map_err(|_| bad())?;
        let size: u32 = size.parse().map_err(|_| bad())?;
        // No structure of Slurm comes near this size; a larger offset is a damaged row.
        if offset > 65_536 || size == 0 || size > 65_536 {
            return Err(bad());
        }
        if (first..=last).contains(&release) {
            let place = Place {
                offset,
                size,
                scalar: natural::is_scalar(ctype, size),
            };
            offsets.insert((structure.to_owned(), field.to_owned()), place);
        }
    }
    Ok(offsets)
}

fn derived(release: Release) -> Result<Option<Offsets>, String> {
    let mut found: Option<Offsets> = None;
    for line in DERIVED
        .lines()
        .filter(|l| !l.starts_with('#') && !l.starts_with("release\t"))
    {
        let columns: Vec<&str> = line.split('\t').collect();
        let bad = || format!("derived.tsv is damaged: {line:.80}");
        let [name, base, structure, from, shift] = columns[..] else {
            return Err(bad());
        };
        if Release::parse(name) != Some(release) {
            continue;
        }
        let base = Release::parse(base).ok_or_else(bad)?;
        let (from, shift) = (
            from.parse::<u32>().map_err(|_| bad())?,
            shift.parse::<u32>().map_err(|_| bad())?,
        );
        let offsets = match &mut found {
            Some(offsets) => offsets,
            none => none.insert(rows(LAYOUTS, base)?),
        };
        for ((owner, _), place) in offsets.iter_mut() {
            if owner == structure && place.offset >= from {
                place.offset += shift;
            }
        }
        // What was put in there has no name here.
        let new = Place {
            offset: from,
            size: shift,
            scalar: false,
        };
        offsets.insert((structure.to_owned(), format!("(new at {from})")), new);
    }
    Ok(found)
}

macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident = $structure:literal { $($field:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[allow(missing_docs, reason = "the fields are Slurm's own names; their values are byte offsets")]
            pub struct $name { $(pub $field: usize,)* pub whole: usize }
            impl $name {
                /// Slurm's name of the structure.
                pub const NAME: &str = $structure;
                /// The fields that are used.
                pub const USED: &[&str] = &[$(stringify!($field)),*];

                /// Offsets of one release, and the size of the whole structure; the error names the field that
                /// the table lacks.
                pub fn of(fields: &Fields) -> Result<$name, String> {
                    Ok($name {
                        $($field: fields.offset($structure, stringify!($field))?,)*
                        whole: fields.size($structure)?,
                    })
                }
            }
        )*
    };
}

layout! {
    /// Slurm's `job_record_t`.
    JobRecord = "job_record" {
        magic, account, bit_flags, details, end_time, gres_list_req, job_id, job_resrcs,
        job_state, name, part_ptr, priority, qos_id, req_switch, spank_job_env, spank_job_env_size, start_time,
        state_desc, state_reason, system_comment, time_limit, time_min, tot_sus_time, user_id, user_name,
    }
    /// Slurm's `job_details_t`.
    JobDetails = "job_details" {
        magic, begin_time, core_spec, cpus_per_task, max_nodes, mc_ptr, min_cpus, min_nodes, ntasks_per_node, ntasks_per_tres,
        num_tasks, overcommit, pn_min_cpus, pn_min_memory, req_node_bitmap, share_res, whole_node,
    }
    /// Slurm's `multi_core_data_t`: what a job asks of sockets, cores and threads.
    MultiCore = "multi_core_data" {
        sockets_per_node, cores_per_socket, threads_per_core, ntasks_per_socket, ntasks_per_core,
    }
    /// Slurm's `job_resources_t`.
    JobResources = "job_resources" { core_bitmap, cpus, memory_allocated, nhosts, node_bitmap }
    /// Slurm's `part_record_t`.
    PartRecord = "part_record" { magic, cr_type, default_time, max_cpus_per_node, max_share, max_time, name }
    /// Which topology a `part_record_t` has, from 25.05 on.
    PartTopology = "part_record" { topology_idx, topology_name }
    /// Slurm's `node_record_t`.
    NodeRecord = "node_record" { magic, cores, cpus, cpus_efctv, gres_list, name, node_spec_bitmap,
        mem_spec_limit, node_state, real_memory, sched_weight, tot_cores, tot_sockets, tpc, weight }
    /// Slurm's `gres_state_t`.
    GresState = "gres_state" { plugin_id, gres_data }
    /// Slurm's `gres_job_state_t`.
    GresJob = "gres_job_state" {
        type_name, cpus_per_gres, def_cpus_per_gres, mem_per_gres, def_mem_per_gres, ntasks_per_gres, gres_per_job, gres_per_node, gres_per_socket, gres_per_task, total_node_cnt,
        gres_bit_alloc, gres_bit_select, gres_cnt_node_select, node_cnt,
    }
    /// Slurm's `gres_node_state_t`.
    GresNode = "gres_node_state" {
        gres_cnt_found, gres_cnt_avail, gres_cnt_alloc, gres_bit_alloc, topo_cnt, link_len, links_cnt, topo_core_bitmap,
        topo_gres_bitmap, topo_gres_cnt_alloc, topo_gres_cnt_avail, topo_type_id, topo_type_name, type_cnt,
        type_cnt_alloc, type_id, type_name,
    }
    /// Slurm's `gres_job_state_t`, for what a job was given on each of its nodes.
    GresHeld = "gres_job_state" { node_cnt, gres_bit_alloc }
    /// Slurm's `gres_device_t`.
    GresDevice = "gres_device" { index, alloc, dev_desc, dev_num, path }
    /// Slurm's `gres_slurmd_conf_t`: a record of gres.conf.
    GresConf = "gres_slurmd_conf" { file, name }
    /// Slurm's `gres_prep_t`: what prolog and epilog are told of a job's GRES.
    GresPrep = "gres_prep" { node_cnt, gres_bit_alloc }
    /// The same in 22.05, `gres_epilog_info_t`.
    GresEpilog = "gres_epilog_info" { node_cnt, gres_bit_alloc }
    /// Slurm's `slurm_conf_t`.
    SlurmConf = "slurm_conf" { select_type, select_type_param }
}

/// All offsets that the select plugin uses.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "one field per structure, each documented at its type"
)]
pub struct Layout {
    pub job: JobRecord,
    pub details: JobDetails,
    /// `None` where the table (one that a site made with an older gpuos) does not have it.
    pub multi_core: Option<MultiCore>,
    pub resources: JobResources,
    pub part: PartRecord,
    /// `part_record.max_cpus_per_socket`, which 22.05 does not have.
    pub part_cpus_per_socket: Option<usize>,
    /// `None` before 25.05, where all partitions have the cluster's topology.
    pub part_topology: Option<PartTopology>,
    pub node: NodeRecord,
    /// `node_record.extra`; `None` where the table (one that a site made) does not have it.
    pub node_extra: Option<usize>,
    /// `node_record.topology_str`; `None` before 25.05.
    pub node_topology: Option<usize>,
    pub gres: GresState,
    pub gres_job: GresJob,
    pub gres_node: GresNode,
    pub conf: SlurmConf,
}

impl Layout {
    /// The offsets of one release.
    pub fn of(fields: &Fields) -> Result<Layout, String> {
        Ok(Layout {
            job: JobRecord::of(fields)?,
            details: JobDetails::of(fields)?,
            // A table that a site made earlier has no row of it; one that has some must be right.
            multi_core: match fields.names(MultiCore::NAME).is_empty() {
                true => None,
                false => Some(MultiCore::of(fields)?),
            },
            resources: JobResources::of(fields)?,
            part: PartRecord::of(fields)?,
            part_cpus_per_socket: fields.offset("part_record", "max_cpus_per_socket").ok(),
            part_topology: PartTopology::of(fields).ok(),
            node_topology: fields.offset("node_record", "topology_str").ok(),
            node: NodeRecord::of(fields)?,
            node_extra: fields.offset("node_record", "extra").ok(),
            gres: GresState::of(fields)?,
            gres_job: GresJob::of(fields)?,
            gres_node: GresNode::of(fields)?,
            conf: SlurmConf::of(fields)?,
        })
    }
}

/// Every field that the select plugin uses, with its structure: of the records, and of what only the checks read.
pub fn used() -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    let mut add = |structure: &'static str, fields: &[&'static str]| {
        all.extend(fields.iter().map(|field| (structure, *field)));
    };
    add(JobRecord::NAME, JobRecord::USED);
    let requests = [
        "tres_per_job",
        "tres_per_node",
        "tres_per_socket",
        "tres_per_task",
    ];
    add(JobRecord::NAME, &requests);
    add(JobDetails::NAME, JobDetails::USED);
    add(MultiCore::NAME, MultiCore::USED);
    add(JobResources::NAME, JobResources::USED);
    add(PartRecord::NAME, PartRecord::USED);
    add(NodeRecord::NAME, NodeRecord::USED);
    add(NodeRecord::NAME, &["extra"]);
    add(GresState::NAME, GresState::USED);
    add(GresState::NAME, &["gres_name"]);
    add(GresJob::NAME, GresJob::USED);
    add(GresNode::NAME, GresNode::USED);
    add(SlurmConf::NAME, SlurmConf::USED);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_release_has_every_field() {
        let mut count = 0;
        for line in VERSIONS.lines().filter(|l| !l.is_empty()) {
            let release = Release::parse(line).expect("a release");
            let fields = Fields::of(release, None);
            let fields = fields.unwrap_or_else(|e| panic!("no rows in layouts.tsv: {e}"));
            let layout = Layout::of(&fields).unwrap_or_else(|e| panic!("{release}: {e}"));
            assert!(layout.node_extra.is_some(), "{release}");
            let of_cores = layout.multi_core.map(|rows| rows.whole);
            assert_eq!(of_cores, Some(18), "{release}");
            count += 1;
        }
        assert!(count >= 71, "versions.txt has lost a release: {count}");
    }

    /// The rows were read on x86-64. They hold on aarch64 as long as no field is of a type that has another size or
    /// alignment there, as `pthread_mutex_t` (40 and 48 bytes) and `long double` have: as the rows leave no field
    /// out, none lies between them either.
    #[test]
    fn rows_are_the_same_on_every_lp64_machine() {
        const SAME: [&str; 16] = [
            "List",
            "_Bool",
            "double",
            "int",
            "time_t",
            "uint8_t",
            "uint16_t",
            "uint32_t",
            "uint64_t",
            // Enums of 4 bytes.
            "gres_state_type_enum_t",
            "slurmdb_assoc_flags_t",
            "slurmdb_qos_flags_t",
            // Structures of a byte and 32 bytes; of numbers of 8 and 4 bytes; of three of 4 bytes; of numbers of 2
            // bytes and a pointer.
            "slurm_hash_t",
            "slurm_step_id_t",
            "gres_device_id_t",
            "acct_policy_limit_set_t",
        ];
        for line in LAYOUTS
            .lines()
            .filter(|line| !line.starts_with('#'))
            .skip(1)
        {
            let ctype = line.split('\t').nth(4).expect("a type");
            assert!(ctype.ends_with('*') || SAME.contains(&ctype), "{line}");
        }
    }

    #[test]
    fn the_observed_release_is_shifted_where_it_was_seen_shifted() {
        let layout = Layout::of(&Fields::of(Release::new(26, 5, 5), None).expect("known"))
            .expect("complete");
        assert_eq!(layout.job.magic, 24);
        assert_eq!(layout.job.details, 264);
        assert_eq!(layout.job.gres_list_req, 352);
        assert_eq!(layout.job.spank_job_env, 1008);
        assert_eq!(layout.job.start_time, 1040);
        assert_eq!(layout.gres_job.gres_per_job, 24);
        assert_eq!(layout.gres_job.gres_per_node, 40);
        assert_eq!(layout.gres_job.gres_bit_select, 96);
        assert_eq!((layout.job.whole, layout.gres_job.whole), (1296, 200));
    }

    #[test]
    fn sizes_of_structures() {
        for (release, job, details, gres) in [
            ("22.05.8", 1048, 504, 152),
            ("24.11.5", 1160, 528, 192),
            ("26.05.3", 1288, 560, 192),
        ] {
            let release = Release::parse(release).expect("a release");
            let layout = Layout::of(&Fields::of(release, None).expect("known")).expect("complete");
            let sizes = (
                layout.job.whole,
                layout.details.whole,
                layout.gres_job.whole,
            );
            assert_eq!(sizes, (job, details, gres), "{release}");
        }
    }

    #[test]
    fn unknown_releases_and_damaged_tables_are_errors_with_a_way_out() {
        let unknown = Fields::of(Release::new(99, 5, 4), None)
            .err()
            .expect("unknown");
        assert!(unknown.contains("gpuos layout"), "{unknown}");
        let site = "job_record\tmagic\tnonsense\t4\tuint32_t\t99.05.4\t99.05.4\n";
        let damaged = Fields::of(Release::new(99, 5, 4), Some(site))
            .err()
            .expect("damaged");
        assert!(damaged.contains("line 1"), "{damaged}");
        let site = "job_record\tmagic\t24\t4\tuint32_t\t99.05.4\t99.05.4\n";
        let fields = Fields::of(Release::new(99, 5, 4), Some(site)).expect("rows of the site");
        assert_eq!(fields.offset("job_record", "magic"), Ok(24));
        assert!(Layout::of(&fields).is_err());
    }
}
