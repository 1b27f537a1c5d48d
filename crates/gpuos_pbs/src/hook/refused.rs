//! What users of PBS are told whose jobs are not taken.

gpuos_config::refusals! {
    /// PBS knows no such level.
    pub(super) fn no_level(level, levels) on "-l gpuos_topology" = "this cluster has no level '{level}'", write "one of {levels}";
    /// What is about GPUs in a job without any.
    pub(super) fn no_gpus(option, name) on option = "the job asks for no GPU", write "ngpus=N in its -l select=, or no {name}";
    /// PBS makes the select itself from old forms, and then nothing can be said of its place.
    pub(super) fn no_select(option) on option = "the job has no -l select=, so that nothing can be said of its place", write "-l select=N:ngpus=M with it";
    /// The job's own place holds chunks together by something else.
    pub(super) fn other_group(place) on "-l gpuos_topology" =
        "it contradicts -l place={place}, which holds the job together by another resource", write "one of the two";
    /// Chunks on different hosts, on one host.
    pub(super) fn scattered() on "-l gpuos_topology" =
        "it contradicts -l place=scatter, which takes another host for each chunk", write "one of the two";
    /// Chunks that name different domains, in one domain.
    pub(super) fn two_domains(resource, one, other) on "-l gpuos_topology" =
        "it contradicts -l select=, of which one chunk has {resource}={one} and another one {resource}={other}", write "one of the two";
    /// No domain of the level could hold the job, were it empty.
    pub(super) fn too_large(gpus, level, largest) on "-l gpuos_topology" =
        "the job asks for {gpus} GPUs, and no {level} has more than {largest}", write "-l gpuos_topology={level} to prefer it only, or ask for less";
    /// A resource of the whole job in a chunk.
    pub(super) fn in_a_chunk(option, name) on option = "it is for the whole job, and cannot be said of a chunk", write "-l {name}=VALUE beside -l select=";
    /// A reservation has no programs and no place of its own rule.
    pub(super) fn of_jobs_alone(option) on option =
        "it means nothing for a reservation", write "it for the jobs in the reservation";
    /// What cannot be read cannot be translated.
    pub(super) fn unread(option, why, form) on option = "{why}", write "{form}";
    /// A rule that only `gpuos pbs-planner` could follow, which this site does not run.
    pub(super) fn placed_by_pbs() on "-l gpuos_placement" =
        "pbs_sched alone places jobs here, and has no such rule", write "default, or no gpuos_placement; an administrator can have it with gpuos pbs-planner";
    /// The site keeps none.
    pub(super) fn no_checkpoints(option) on option =
        "no checkpoints are kept here", write "off, or no gpuos_checkpoint; an administrator can have them with gpuos_mover and gpuos pbs install --checkpoints";
    /// Nobody mounts a folder in memory before a program of PBS starts.
    pub(super) fn not_in_memory(option) on option =
        "no folder in memory is made for jobs of PBS", write "it without l0=";
    /// No GPU of gpus.json has `shares`.
    pub(super) fn no_shares(option) on option =
        "no GPU of this cluster is shared by jobs", write "ngpus=1 in -l select= for a whole GPU; an administrator can have GPUs shared with shares in gpus.json of gpuos pbs install";
    /// `[memory]` of gpuos.toml has no `turns`.
    pub(super) fn turns_are_off(option) on option =
        "on this site jobs do not share the memory of a GPU in turns",
        write "no mem=, and share the GPU with what memory others leave; an administrator can allow it with [memory] turns = 2 in gpuos.toml";
    /// On sites with `turns` all that share a GPU have to say how much of its memory they need: others could leave them none.
    pub(super) fn share_without_memory(option) on option =
        "on this site jobs that share a GPU have it in turns with its memory, and how much of that the job needs is not said",
        write "timeslice,mem=SIZE, or ngpus=1 in -l select= for a whole GPU";
    /// PBS counts none of it.
    pub(super) fn not_on_nvme(option) on option =
        "PBS does not count NVMe for what is parked", write "it without park=nvme";
    /// More than the smallest GPU that is shared has for one job.
    pub(super) fn turns_are_too_large(option, gpu, most) on option =
        "a GPU that the job could get has {gpu} MiB, of which programs' contexts take some", write "mem={most}M or less, or ngpus=1 in -l select= for a whole GPU";
    /// More than all of one GPU.
    pub(super) fn too_many_parts(option, parts) on option =
        "a GPU has {parts} parts", write "at most as many, or ngpus=1 in -l select= for a whole GPU";
    /// What is parked needs a place in memory that PBS counts as the job's.
    pub(super) fn turns_need_memory(option) on option =
        "how much of the host's memory the program itself needs is not said",
        write "mem=SIZE in -l select=: a place for what is parked is added to that";
    /// What a job with a share has is counted in its chunk.
    pub(super) fn share_has_one_chunk(option, chunks) on option =
        "the job has {chunks} chunks in -l select=, and a share is a part of one GPU", write "-l select=1:ncpus=N:mem=SIZE, or an array of jobs";
    /// Others have the rest of the GPU.
    pub(super) fn share_is_not_alone(option, place) on option =
        "it contradicts -l place={place}, which leaves nobody else on the GPU", write "one of the two";
    /// What would be of the whole GPU, or another part of one.
    pub(super) fn share_goes_not_with(option, beside, why) on option =
        "it does not go with {beside}, {why}", write "one of the two (off undoes an option)";
    /// A count is made of what a job asks for.
    pub(super) fn by_hand(option) on option =
        "gpuos counts it by what a job asks for", write "-l gpuos_share=VALUE, as in gpuos_share=timeslice";
    /// A default of a queue or of the server, which PBS adds after the hook has counted, or counts of before the site was changed.
    pub(super) fn share_is_not_counted(option) on option =
        "the job's parts of a GPU, or its place for what is parked, are not counted as it is now: it is a default of the queue or of the server, or the          site has changed; not started",
        write "it for the job, as in qalter -l gpuos_share=…";
    /// gpuos.toml has no `[memory] oversubscribe`.
    pub(super) fn memory_is_off(option) on option =
        "this site gives jobs no more memory than their GPUs have",
        write "no gpuos_mem; an administrator can allow it with [memory] oversubscribe = true in gpuos.toml, and gpuos pbs install again";
    /// Parts of GPUs, or MPS.
    pub(super) fn memory_goes_not_with(option, beside, why) on option =
        "it does not go with {beside}, {why}", write "one of the two (off undoes an option)";
    /// The job could get a GPU of which gpuos.toml does not say how much memory it has.
    pub(super) fn memory_of_gpu_unknown(option, host) on option =
        "how much memory the GPUs of {host} have is not said",
        write "no gpuos_mem; an administrator says it with a [[nodes]] in gpuos.toml, and runs gpuos pbs install again";
    /// No host of gpus.json has a GPU that is given as a whole.
    pub(super) fn memory_of_no_gpu(option) on option =
        "no GPU of this cluster is given to jobs as a whole by gpuos", write "no gpuos_mem";
    /// More than `most-percent` of the smallest GPU, or with tiers=hbm more than it has.
    pub(super) fn memory_is_too_much(option, gpu, most) on option =
        "a GPU that the job could get has {gpu} MiB", write "at most {most}M here";
    /// What the GPUs have no room for is counted in chunks.
    pub(super) fn memory_has_no_chunk(option) on option =
        "the job has no -l select=, in which host memory for its GPUs could be counted", write "-l select=N:ngpus=M:mem=SIZE with it";
    /// What the GPUs take is added to what the program needs, which has to be said.
    pub(super) fn memory_of_program_unsaid(option) on option =
        "how much of the host's memory the program itself needs is not said",
        write "mem=SIZE in each chunk with GPUs of -l select=: what the GPUs take is added to that";
    /// It is made of what a job asks for.
    pub(super) fn memory_by_hand(option) on option =
        "gpuos counts it by what a job asks for", write "-l gpuos_mem=SIZE, as in gpuos_mem=120G";
    /// A default of a queue or of the server, which PBS adds after the hook has counted, or counts of before the site was changed.
    pub(super) fn memory_is_not_counted(option, host) on option =
        "what its GPUs of {host} take of the host's memory is not counted as it is now: it is a default of the queue or of the server, or the \
         site has changed; not started",
        write "it for the job, as in qalter -l gpuos_mem=…";
    /// No GPU of the site has such slices, or not so many at once. The sentence names the profiles that there are.
    pub(super) fn not_served(option, reason, accepted) on option = "{reason}", write "{accepted}";
    /// Slices are counted in the chunk of a job.
    pub(super) fn no_chunk(option) on option =
        "the job has no -l select=, in which its slices could be counted", write "-l select=1:ncpus=N with it";
    /// How slices of several kinds are beside each other on a GPU PBS does not count.
    pub(super) fn one_profile(option, chunks) on option =
        "the job has {chunks} chunks, of which each has slices of one kind", write "one profile, as in 1g.10gb or 1g.10gb:2, or one chunk";
    /// For the whole job, while gpuos writes the job's chunks.
    pub(super) fn beside_chunks(option) on option =
        "it would be lost: gpuos writes what it counts into the job's -l select=", write "it in -l select=N:resource=value[:...] of the same qalter";
    /// PBS counts no tasks.
    pub(super) fn per_task(option) on option = "PBS has no tasks of which each could have its own", write "how many instances the job has, as in 1g.10gb:2";
    /// A program sees either kind.
    pub(super) fn beside_gpus(option) on option = "the job asks for whole GPUs too", write "either ngpus=N in -l select= or gpuos_mig";
    /// A default of a queue or of the server, which PBS adds after the hook has counted slices.
    pub(super) fn not_counted(option) on option =
        "it is a default of the queue or of the server, and its slices were not counted; not started", write "it for the job, as in qalter -l gpuos_mig=…";
    /// Its last start was refused by its host, where what PBS counts was not to be had.
    pub(super) fn put_off(option, runs, seconds) on option =
        "its GPUs were not to be had where it was started last, for which the log of pbs_mom there has the reason; start put off (number {runs}) and tried again in {seconds} s",
        write "nothing: it is tried again";
    /// More GPUs than a vnode has left, by an operator's word or of two starts in one moment.
    pub(super) fn overcommitted(vnode, given, free) on "exec_vnode" =
        "the start would have {given} GPUs of {vnode}, and {free} are left there; not started, and it keeps its place in the queue",
        write "nothing: it is tried again; an operator names vnodes with so many GPUs left";
    /// The vnodes that PBS chose are not within one domain, which the job requires.
    pub(super) fn spread(level, one, other, tries, minutes) on "-l gpuos_topology" =
        "no {level} had room for all of the job: {one} and {other} are in different ones; start put off (number {tries}) and tried again in {minutes} min",
        write "a level without :required to start all the same, or ask for less";
    /// The same where a vnode is in no domain.
    pub(super) fn nowhere(level, vnode, tries, minutes) on "-l gpuos_topology" =
        "vnode {vnode} is in no {level} that PBS knows of; start put off (number {tries}) and tried again in {minutes} min",
        write "a level without :required to start all the same";
    /// As the last but one, of a job that is not put off: it was so often enough, or a planner looks for a place for it.
    pub(super) fn spread_in_queue(level, one, other) on "-l gpuos_topology" =
        "no {level} had room for all of the job: {one} and {other} are in different ones; not started, and it keeps its place in the queue until one has",
        write "a level without :required to start all the same, or ask for less";
    /// The same where a vnode is in no domain.
    pub(super) fn nowhere_in_queue(level, vnode) on "-l gpuos_topology" =
        "vnode {vnode} is in no {level} that PBS knows of; not started, and it keeps its place in the queue; if the vnode is in one, an \
         administrator has to say so by gpuos pbs install --hosts",
        write "a level without :required to start all the same";
    /// The vnodes that PBS chose for a subjob of an array, which it cannot put off.
    pub(super) fn spread_subjob(level, one, other) on "-l gpuos_topology" =
        "no {level} had room for all of this subjob: {one} and {other} are in different ones; not started, and tried again whenever pbs_sched comes to it",
        write "a level without :required to start all the same, or ask for less";
    /// The same where a vnode is in no domain.
    pub(super) fn nowhere_subjob(level, vnode) on "-l gpuos_topology" =
        "vnode {vnode} is in no {level} that PBS knows of; the subjob is not started, and tried again whenever pbs_sched comes to it",
        write "a level without :required to start all the same";
}

#[cfg(test)]
#[path = "../../../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_refusal_of_pbs() {
    page::hold(&[("pbs", REFUSALS)], &[]);
}
