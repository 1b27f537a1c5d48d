# gpuos: `make help` lists the targets.

# Where `make install` puts things. DESTDIR is put in front of all of them.
PREFIX    ?= /usr
DESTDIR   ?=
PLUGINDIR ?= $(PREFIX)/lib/gpuos
# libgpuos.so, which programs of users link.
LIBDIR    ?= $(PREFIX)/lib/gpuos
# Where debuggers look for what is taken out of programs and plugins; STRIP=no leaves it in.
DEBUGDIR  ?= $(PREFIX)/lib/debug
STRIP     ?= yes

CARGO   ?= cargo
TARGET  := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
# A build that runs on this machine, for what is made by running it.
NATIVE  := $(RELEASE)

# Labs make device files and start Slurm's daemons: that is root's.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
ifneq ($(SUDO),)
AS_ROOT := --config 'target."cfg(unix)".runner=["sudo","-E"]'
endif

# What only gpuosd's feature otel has. With the whole workspace, so that crates are built with the features that they have already.
OTEL := --workspace --locked --features gpuosd/otel --test traces

DAEMONS := gpuosd gpuos_mover
# Not of a node: one machine of the cluster has its timer enabled.
DRILL   := gpuos-ckpt-drill.service gpuos-ckpt-drill.timer
# On the host of pbs_server.
PLANNER := gpuos-pbs-planner.service
PLUGINS := select_gpuos spank_gpuos job_submit_gpuos gres_gpuos
DOC     := $(PREFIX)/share/doc/gpuos
MAN     := $(PREFIX)/share/man/man1
MAN8    := $(PREFIX)/share/man/man8
UNITS   := $(PREFIX)/lib/systemd/system
BASH    := $(PREFIX)/share/bash-completion/completions
ZSH     := $(PREFIX)/share/zsh/vendor-completions
FISH    := $(PREFIX)/share/fish/vendor_completions.d
SHARE   := $(PREFIX)/share/gpuos
INCLUDE := $(PREFIX)/include
PKGCONF := $(PREFIX)/lib/pkgconfig

# spank_gpuos has to be told of a library that lies elsewhere.
ifneq ($(LIBDIR),/usr/lib/gpuos)
PRELOAD = -e 's,^optional .*/spank_gpuos\.so$$,& preload=$(LIBDIR)/libgpuos_preload.so.0,'
endif
# What is installed follows PREFIX, PLUGINDIR and LIBDIR, samples too.
PLACES   = sed -e '/ without it/!s,/usr/lib/gpuos,$(PLUGINDIR),g' $(PRELOAD) -e 's,/usr/sbin/,$(PREFIX)/sbin/,g' -e 's,/usr/bin/gpuos,$(PREFIX)/bin/gpuos,g'
STRIPPED = STRIP=$(STRIP) scripts/install-stripped.sh
VERSION  = $(shell sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)

.DEFAULT_GOAL := help
.PHONY: help demo test check style random reference bench bench-checkpoint bench-memory replay results soak weaker pbs-pairs pbs-ptl plans matrix ckpt-matrix ckpt-rto ckpt-losses ckpt-flips ckpt-scale ckpt-overhead ckpt-beside mem-matrix gpu-test pbs upgrade hostile lint licences build release install install-files uninstall clean sentences forms vm-build vm-from vm-test vm-sh vm-table arm-test

help:
	@echo 'make demo       real Slurm clusters on this machine, stock and gpuos side by side (root or sudo)'
	@echo 'make test       all tests, those with a real Slurm too (root or sudo)'
	@echo 'make check      format, clippy and the tests without a Slurm and without gpuosd on simulated GPUs: the daily round'
	@echo 'make lint       format, clippy and the licences of dependencies'
	@echo 'make bench      time of job tests inside slurmctld, stock and gpuos in one run (ARGS=--quick), or that of two builds (FROM=REVISION)'
	@echo 'make replay     2,000 trace jobs in the real slurmctld, stock and gpuos side by side (ARGS=--quick)'
	@echo 'make bench-checkpoint rates of the checkpoint store beside fio, the codes and a plain file; writes docs/results/checkpoint-rates.md (ARGS=--mib 4096)'
	@echo 'make bench-memory time of an allocation among 16 million extents, of calls, and rates of moves beside plain copies and a plain file (ARGS=--mib 2048)'
	@echo 'make results    bench and replay, 12,500 nodes too, and the planner: docs/results/*.csv and the tables made of them (ARGS=--quick)'
	@echo 'make forms      all forms of request by states of a cluster: how many jobs gpuos places (half an hour for each release)'
	@echo 'make soak       5,000 random requests and failures against an independent ledger; 2,000 with slurmctld killed beside them'
	@echo 'make plans      what gpuos plan says of random requests, beside what slurmctld then does (CASES=1000, SUITES=native,trixie,sid)'
	@echo 'make weaker     generated requests, states and gres.conf, on stock Slurm and beside it with gpuos: never fewer GPUs (PAIRS=3000, SEED=, SUITES=native,trixie,sid)'
	@echo 'make pbs-pairs  generated sites, states and requests on a real OpenPBS, stock and beside it with gpuos (PBS=/opt/pbs, PBS_PAIRS=3000, SEED=; root or sudo)'
	@echo 'make pbs-ptl    tests of OpenPBS itself, on a stock one and on one with gpuos: what passes on stock passes with gpuos (PBS=/opt/pbs, PTL=test/ of its source, CLASSES=; root)'
	@echo 'make matrix     first jobs under each wrong layout table, on each release'
	@echo 'make ckpt-matrix programs with checkpoints, and what ends beneath them at random moments (MOMENTS=, SUITES=native,trixie,sid, GPUOS_CKPT_MATRIX_VICTIMS=, …_PROGRAMS=)'
	@echo 'make ckpt-rto   a node dies: seconds until the program does its next step, by parts (RUNS=, MIB=, MODES=requeue,spare)'
	@echo 'make ckpt-beside an MPI program that saves, with gpuos, with SCR and with plain files (SCR=FOLDER, COUNT=, MIB=)'
	@echo 'make ckpt-overhead what checkpoints cost a training loop, and the interval of auto (TURNS=, MIB=)'
	@echo 'make ckpt-losses any two of eight stores lost at any moment, and three (SEEDS=)'
	@echo 'make ckpt-flips flips, cuts and swaps in what is stored and drained: none is loaded (FLIPS=)'
	@echo 'make mem-matrix all that holds memory in tiers, with the numbers of long runs: random CUDA programs, planted errors, jobs in turns, Slurm (MEM_SEEDS=; root or sudo)'
	@echo 'make gpu-test   memory in tiers under the real driver, on a machine with a GPU; says what it skips (ARGS=--small, ARGS="--only parking")'
	@echo 'make pbs        hook and planner on a real OpenPBS: what they cost, 500 random jobs, 100 kills, a fault; docs/results/pbs.md (PBS=/opt/pbs, PBS_EVENTS=, PBS_JOBS=, PBS_KILLS=; root or sudo)'
	@echo 'make ckpt-scale messages, bytes and modelled time of checkpoint, restart and loss of a rack with 1,250 nodes'
	@echo 'make random     property tests and simulators with cases of their own in each run, and all seeds'
	@echo 'make upgrade    jobs that run while gpuos itself is upgraded (FROM=REVISION)'
	@echo 'make hostile    what two ordinary users may try against others, nodes and root: all attempts (SECURITY.md)'
	@echo 'make sentences  what gpuos why says in 4,000 generated clusters, against an independent oracle (STATES=)'
	@echo 'make reference  docs/reference, from the tables in the code'
	@echo 'make vm-test    Debian with systemd and control groups v2 in emulated machines: all of gpuos by its units (SUITES= PARTS= FROM=REVISION)'
	@echo 'make arm-test   the same on aarch64'
	@echo 'make vm-sh      a root shell in such a machine (SUITE=trixie)'
	@echo 'make vm-table   docs/reference/machines.md, from what these tests saw'
	@echo 'make release    the plugins and the command, optimised'
	@echo 'make install    PREFIX=/usr DESTDIR= PLUGINDIR=$$PREFIX/lib/gpuos LIBDIR=$$PREFIX/lib/gpuos STRIP=yes, after make release'
	@echo 'make uninstall  removes what install put there'
	@echo 'make clean      removes what was built'
	@echo
	@echo 'demo, test, check and lint install the Debian packages that are missing.'

demo:
	@scripts/needs.sh build lab
	$(CARGO) build --release --locked $(PLUGINS:%=-p %) -p gpuos_cli -p gpuos_tests --lib --bins --example demo
	@$(SUDO) $(RELEASE)/examples/demo

build:
	$(CARGO) build --workspace --locked

# Tests of a real Slurm mostly wait: more labs side by side than there are cores.
test: export RUST_TEST_THREADS ?= $(shell echo $$(($$(nproc) + 6)))
# What labs run is built here, once, and with the tests, as they have dependencies with features of their own.
test: export GPUOS_PLUGIN_DIR ?= $(abspath $(TARGET))/debug
test: export GPUOS_DAEMON_DIR ?= $(abspath $(TARGET))/debug
test: export GPUOS_PROGRAM_DIR ?= $(abspath $(TARGET))/debug
# Property tests draw the same cases each time, so that a change is judged by what it changes; `make random` draws others.
test check: export PROPTEST_RNG_SEED ?= 1
# What each step and suite costs: the table at the end.
test: export GPUOS_COSTS ?= $(abspath $(TARGET))/costs.tsv
# What failed, once more below that table.
test: export GPUOS_FAILURES ?= $(abspath $(TARGET))/failures.txt
# Tests of PBS that need more than the stand-in has: how many, in the last line.
test: export GPUOS_SKIPPED ?= $(abspath $(TARGET))/skipped.tsv
# Other targets are built with these where clippy is the compiler, which has to see them too.
BUILT ?= --lib --bins --tests
test:
	@mkdir -p $(TARGET) && rm -f $$GPUOS_COSTS $$GPUOS_FAILURES $$GPUOS_SKIPPED
	@scripts/timed.sh packages scripts/needs.sh build lab layout count accounting metrics mpi gridengine
	scripts/timed.sh build $(CARGO) build --workspace --locked $(BUILT)
	@scripts/timed.sh 'instruction counts' scripts/instructions.sh
	@status=0; \
	RUNNER='$(SUDO)' scripts/tests.sh all || status=$$?; \
	scripts/timed.sh 'tests of the feature otel' $(CARGO) test $(OTEL) $(AS_ROOT) || status=$$?; \
	scripts/costs.sh $$GPUOS_COSTS; [ ! -s $$GPUOS_FAILURES ] || cat $$GPUOS_FAILURES; \
	[ $$status != 0 ] || echo "all tests passed$$(scripts/skipped.sh $$GPUOS_SKIPPED)"; exit $$status

# The daily round.
check: style
	@scripts/tests.sh quick

# Property tests and simulators without a Slurm, with cases of their own in each run and all seeds.
random:
	@scripts/needs.sh build
	GPUOS_LONG=1 GPUOS_TEST_SUITES=none $(CARGO) test --workspace --locked --no-fail-fast

# The pages that are made of tables in the code; `make check` says where they are not what the code says.
reference:
	GPUOS_WRITE=1 $(CARGO) test --workspace --locked -q --test node --test config -- health_docs:: reference::
	GPUOS_WRITE=1 $(CARGO) test --workspace --locked -q --bin gpuos -- pages_reference why::table
	GPUOS_WRITE=1 $(CARGO) test --workspace --locked -q --lib the_page_in_the_reference

style:
	@scripts/needs.sh build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

lint: style
	$(CARGO) clippy $(OTEL) -- -D warnings
	@$(MAKE) --no-print-directory licences

STATES ?= 4000
sentences:
	GPUOS_STATES=$(STATES) $(CARGO) test --locked -p gpuos_cli --bin gpuos why::table -- --nocapture

licences:
	$(CARGO) test --workspace --locked -q --test house licence

bench:
	@scripts/needs.sh build lab
	@scripts/bench.sh $(if $(FROM),--from $(FROM)) $(ARGS)

# On the file system of the build folder; ARGS='--folder DIR' names another one.
bench-checkpoint:
	@scripts/needs.sh build
	@command -v fio > /dev/null || { echo 'bench-checkpoint measures beside fio: apt-get install fio' >&2; exit 2; }
	@mkdir -p $(TARGET)/bench
	$(CARGO) bench --locked -q -p gpuos_store --bench rates -- --folder $(abspath $(TARGET))/bench --page $(CURDIR)/docs/results/checkpoint-rates.md $(ARGS)

# The open gate has no bench of its own: its test prints what it costs.
bench-memory:
	@scripts/needs.sh build
	@mkdir -p $(TARGET)/bench
	$(CARGO) bench --locked -q -p gpuos_memory --bench table
	$(CARGO) build --release --locked -q -p gpuos_cuda
	@ln -sf ../release/libcuda.so $(TARGET)/bench/libcuda.so.1
	$(CARGO) bench --locked -q -p gpuos_fabric --bench moves -- --folder $(abspath $(TARGET))/bench $(ARGS)
	GPUOS_CUDA=memory=8G LD_LIBRARY_PATH=$(abspath $(TARGET))/bench $(CARGO) bench --locked -q -p gpuos_fabric --bench moves -- --folder $(abspath $(TARGET))/bench --device 0 $(ARGS)
	$(CARGO) bench --locked -q -p gpuos_moverd --bench parked -- --folder $(abspath $(TARGET))/bench $(ARGS)
	GPUOS_LONG=1 $(CARGO) test --release --locked -q -p gpuos_preload --lib open_gate -- --nocapture

replay:
	@scripts/needs.sh build lab
	@scripts/bench.sh replay $(ARGS)

# What was measured, with the day, where the pages of results have it, and the tables in those pages that are made of it.
results:
	@scripts/needs.sh build lab
	@scripts/bench.sh $(ARGS)
	@scripts/bench.sh $(ARGS) --huge --out $(TARGET)/bench/huge
	@scripts/bench.sh replay $(ARGS)
	cp $(TARGET)/bench/bench.csv docs/results/benchmarks.csv
	cp $(TARGET)/bench/bench.svg docs/results/benchmarks.svg
	cp $(TARGET)/bench/huge/bench.csv docs/results/benchmarks-huge.csv
	cp $(TARGET)/bench/replay.csv docs/results/benchmarks-replay.csv
	$(CARGO) bench --locked -p gpuos_placement --bench latency -- ../../docs/results
	GPUOS_WRITE=1 $(CARGO) test --workspace --locked -q --test tables

matrix:
	@scripts/needs.sh build lab
	$(CARGO) build --locked $(PLUGINS:%=-p %)
	GPUOS_MATRIX=1 $(CARGO) test --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture tables::

# Programs with checkpoints and all that can end beneath them, at so many moments each; docs/results/ckpt-matrix has what came of it. SUITES=native,trixie,sid has
# the releases of these, beside each other, with programs in suites of their own.
MOMENTS ?= 3
SUITES ?= native
comma := ,
ckpt-matrix:
	@scripts/needs.sh build lab mpi torch
	$(if $(filter-out native,$(SUITES)),cache=$$(scripts/suites-with-programs.sh $(subst $(comma), ,$(SUITES))) && GPUOS_LAB_CACHE=$$cache) \
	GPUOS_TEST_SUITES=$(SUITES) GPUOS_CKPT_MATRIX=$(MOMENTS) GPUOS_WRITE=1 \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture checkpoint_matrix::

# A node dies, its store with it, so many times: until the program goes on, by parts; docs/results/ckpt-rto has what came of it. For the figures on a machine with
# nothing else to do: fifty runs of both kinds take most of an hour.
RUNS ?= 50
ckpt-rto:
	@scripts/needs.sh build lab
	GPUOS_CKPT_RTO=$(RUNS) $(if $(MIB),GPUOS_CKPT_RTO_MIB=$(MIB)) $(if $(MODES),GPUOS_CKPT_RTO_MODES=$(MODES)) GPUOS_WRITE=1 \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture checkpoint_rto::

# An MPI program that saves by gpuos, by SCR where SCR= names the folder where that is installed, and by files of its own, with optimised daemons.
COUNT ?= 10
ckpt-beside:
	@scripts/needs.sh build lab mpi
	GPUOS_CKPT_BESIDE=$(COUNT) $(if $(MIB),GPUOS_CKPT_BESIDE_MIB=$(MIB)) $(if $(SCR),GPUOS_SCR=$(abspath $(SCR))) GPUOS_WRITE=1 \
	  $(CARGO) test --release --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture checkpoint_beside::

# A training loop with and without checkpoints, by turns, with optimised daemons; docs/results/ckpt-overhead has what came of it.
TURNS ?= 5
ckpt-overhead:
	@scripts/needs.sh build lab torch
	GPUOS_CKPT_OVERHEAD=$(TURNS) $(if $(MIB),GPUOS_CKPT_OVERHEAD_MIB=$(MIB)) GPUOS_WRITE=1 \
	  $(CARGO) test --release --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture checkpoint_overhead::

# A job of eight nodes for each seed, and stores that are lost at random moments of five kinds.
SEEDS ?= 10
ckpt-losses:
	@scripts/needs.sh build lab
	GPUOS_CKPT_LOSSES=$(SEEDS) GPUOS_WRITE=1 $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture checkpoint_losses::

FLIPS ?= 10000
ckpt-flips:
	@scripts/needs.sh build
	GPUOS_CKPT_FLIPS=$(FLIPS) GPUOS_CKPT_FLIPS_SEED=$$(date +%s) $(CARGO) test --locked -p gpuos_store --test store -- --nocapture damage

# Thousands of nodes in memory; docs/results/checkpoint-scale has what came of it.
ckpt-scale:
	@scripts/needs.sh build
	GPUOS_CKPT_SCALE=1 GPUOS_WRITE=1 $(CARGO) test --release --locked -p gpuos_mover --test mover -- --nocapture scale::

# All that holds memory in tiers, on the simulated driver; builds without debug assertions move nothing at random, so this is no release build.
# The broker of a node is tried on jobs in simulated time. What fails does not keep the rest from running.
MEM_SEEDS ?= 3334
mem-matrix: export GPUOS_LONG := 1
mem-matrix: export GPUOS_PRELOAD_SEEDS := $(MEM_SEEDS)
mem-matrix:
	@scripts/needs.sh build lab clients
	@status=0; set -x; \
	$(CARGO) test --locked --no-fail-fast -p gpuos_memory -p gpuos_fabric -p gpuos_cuda -p gpuos_preload -p libgpuos -- --nocapture || status=1; \
	$(CARGO) test --locked --no-fail-fast -p gpuos_moverd -- --nocapture parked:: || status=1; \
	$(CARGO) test --locked -p gpuosd --test daemon -- --nocapture --test-threads=1 memory:: turns:: makespan:: contained:: killed:: nvme:: checkpointed:: pressure:: || status=1; \
	$(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture --test-threads=1 memory_grants:: memory_kills:: memory_places:: memory_short:: memory_turns:: || status=1; \
	exit $$status

# Without a GPU it says so. What moves memory at random is a debug build.
gpu-test:
ifneq ($(wildcard /dev/nvidiactl),)
	@scripts/needs.sh build
	$(CARGO) build --release --locked -p gpuos_cli -p gpuosd -p gpuos_preload -p libgpuos
	$(CARGO) build --locked -p gpuos_preload
endif
	@python3 tests/gpu/run.py --bin $(TARGET)/release --debug $(TARGET)/debug $(ARGS)

# An OpenPBS under PBS=, with release builds of what is measured; docs/results/pbs.md has what came of it, and is written anew. Some 45 minutes, on a machine with
# nothing else to do: the page says the load.
PBS        ?= /opt/pbs
PBS_EVENTS ?= 500
PBS_JOBS   ?= 500
PBS_KILLS  ?= 20
pbs:
	@test -x $(PBS)/sbin/pbs_server || { echo 'no pbs_server under $(PBS): install OpenPBS, and name its prefix with PBS=' >&2; exit 2; }
	@scripts/needs.sh build lab
	$(CARGO) build --release --locked -p gpuos_cli -p pbs_hook -p gpuosd -p gpuos_nvml -p gpuos_preload -p gpuos_cuda
	GPUOS_TEST_PBS=$(PBS) GPUOS_PBS=$(PBS_EVENTS) GPUOS_PBS_JOBS=$(PBS_JOBS) GPUOS_PBS_KILLS=$(PBS_KILLS) GPUOS_WRITE=1 \
	GPUOS_PROGRAM_DIR=$(abspath $(RELEASE)) GPUOS_PLUGIN_DIR=$(abspath $(RELEASE)) GPUOS_DAEMON_DIR=$(abspath $(RELEASE)) \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture --test-threads=1 pbs_measured:: pbs_holds:: pbs_health:: pbs_kills::

# Jobs that run while gpuos itself is upgraded, from a revision of this repository.
upgrade:
	@test -n "$(FROM)" || { echo 'name the revision to come from: make upgrade FROM=REVISION' >&2; exit 2; }
	@scripts/needs.sh build lab
	@rm -rf $(TARGET)/upgrade && mkdir -p $(TARGET)/upgrade
	git archive $(FROM) | tar -x -C $(TARGET)/upgrade
	cd $(TARGET)/upgrade && $(CARGO) build --locked --target-dir target $(PLUGINS:%=-p %) -p gpuosd -p gpuos_nvml
	$(CARGO) build --workspace --locked --lib --bins
	GPUOS_UPGRADE_FROM=$(abspath $(TARGET))/upgrade/target/debug GPUOS_PLUGIN_DIR=$(abspath $(TARGET))/debug \
	  GPUOS_DAEMON_DIR=$(abspath $(TARGET))/debug GPUOS_PROGRAM_DIR=$(abspath $(TARGET))/debug \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture upgrade::

forms:
	@scripts/needs.sh build lab
	GPUOS_FORMS=1 $(CARGO) test --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture --test-threads=1 steering::

soak:
	@scripts/needs.sh build lab
	GPUOS_SOAK=50000 $(CARGO) test --release --locked -p gpuos_placement --test placement -- --nocapture decisions_sim::
	$(CARGO) build --release --locked $(PLUGINS:%=-p %)
	GPUOS_SOAK=5000 $(CARGO) test --release --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture soak:: mix::
	GPUOS_SOAK=2000 GPUOS_SOAK_KILLS=1 $(CARGO) test --release --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture --skip late_start soak::

# Never weaker than stock: so many pairs of all kinds, and so many about links alone, on each release; docs/results/weaker.md. SEED= names the
# cluster to begin with, and each that shows a difference prints its own.
PAIRS ?= 3000
weaker:
	@scripts/needs.sh build lab
	GPUOS_TEST_SUITES=$(if $(filter file,$(origin SUITES)),native$(comma)trixie$(comma)sid,$(SUITES)) \
	GPUOS_WEAKER=$(PAIRS) $(if $(SEED),GPUOS_WEAKER_SEED=$(SEED)) $(if $(SRUNS),GPUOS_WEAKER_SRUNS=$(SRUNS)) \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture --test-threads=1 weaker::

# The same on a PBS: so many pairs of sites, states and requests. SEED= names the site to begin with, and each that shows a difference prints its own.
PBS_PAIRS ?= 3000
pbs-pairs:
	@test -x $(PBS)/sbin/pbs_server || { echo 'no pbs_server under $(PBS): install OpenPBS, and name its prefix with PBS=' >&2; exit 2; }
	@scripts/needs.sh build lab
	GPUOS_TEST_PBS=$(PBS) GPUOS_PBS_PAIRS=$(PBS_PAIRS) $(if $(SEED),GPUOS_PBS_PAIRS_SEED=$(SEED)) \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture pbs_pairs::

# Tests of OpenPBS itself (PTL), from the source of the release that is installed under PBS=; some hours for all classes.
pbs-ptl:
	@test -x $(PBS)/sbin/pbs_server || { echo 'no pbs_server under $(PBS): install OpenPBS, and name its prefix with PBS=' >&2; exit 2; }
	@test -n '$(PTL)' || { echo 'name the folder test/ of the source of that OpenPBS with PTL=' >&2; exit 2; }
	$(CARGO) build --locked -p gpuos_cli -p gpuosd -p pbs_hook -p gpuos_nvml
	$(SUDO) tests/pbs_ptl/run.sh $(PBS) $(PTL) $(TARGET)/debug $(TARGET)/pbs-ptl $(CLASSES)

# What `gpuos plan` says of so many random requests, beside what slurmctld then does, on each release; docs/results/plan.md.
CASES ?= 1000
plans:
	@scripts/needs.sh build lab
	GPUOS_TEST_SUITES=$(if $(filter file,$(origin SUITES)),native$(comma)trixie$(comma)sid,$(SUITES)) GPUOS_PLAN_CASES=$(CASES) \
	  $(CARGO) test --workspace --locked $(AS_ROOT) --test slurm -- --nocapture plan_agrees::

# Machines that qemu emulates. Where it cannot be had the tests are skipped, and say so.
SUITES ?= bookworm trixie sid
# Of aarch64 the newer two, if none are named.
ARM_SUITES := $(if $(filter file,$(origin SUITES)),trixie sid,$(SUITES))
PARTS  ?=
SUITE  ?= trixie
PROGRAMS := -p gpuosd -p gpuos_moverd -p gpuos_cli -p gpuos_layout -p gpuos_nvml
vm-build:
	@scripts/needs.sh build
	$(CARGO) build --release --locked $(PLUGINS:%=-p %) $(PROGRAMS) -p libgpuos -p libscr
# The older build that the part `upgrade` starts from.
vm-from:
	@rm -rf $(TARGET)/vm/from && mkdir -p $(TARGET)/vm/from
	git archive $(FROM) | tar -x -C $(TARGET)/vm/from
	cd $(TARGET)/vm/from && $(CARGO) build --release --locked --target-dir target $(PLUGINS:%=-p %) $(PROGRAMS)
vm-test: vm-build $(if $(FROM),vm-from)
	@scripts/needs.sh vm || echo 'going on with what is here'
	@status=0; for suite in $(SUITES); do \
	  RELEASE=$(RELEASE) NATIVE=$(RELEASE) OUT=$(TARGET)/vm FROM=$(if $(FROM),$(TARGET)/vm/from/target/release) \
	    NEXT=$$([ $$suite != trixie ] || echo sid) $(SUDO) tests/vm/vm.sh test $$suite $(PARTS) || status=1; \
	done; exit $$status
arm-test: vm-build
	@scripts/needs.sh cross vm-arm64 || echo 'going on with what is here'
	$(SUDO) scripts/cross-arm64.sh
	@status=0; for suite in $(ARM_SUITES); do \
	  RELEASE=$(TARGET)/aarch64-unknown-linux-gnu/release NATIVE=$(RELEASE) OUT=$(TARGET)/vm LIMIT=3600 $(SUDO) tests/vm/vm.sh test $$suite/arm64 $(PARTS) \
	    || status=1; \
	done; exit $$status
vm-sh: vm-build
	@scripts/needs.sh vm
	@RELEASE=$(RELEASE) NATIVE=$(RELEASE) OUT=$(TARGET)/vm $(SUDO) tests/vm/vm.sh sh $(SUITE)
vm-table:
	@test -e $(TARGET)/vm/machines.csv || { echo 'nothing was seen yet: run make vm-test or make arm-test first' >&2; exit 1; }
	cp $(TARGET)/vm/machines.csv docs/reference/machines.csv
	GPUOS_WRITE=1 $(CARGO) test --workspace --locked -q --test tables

hostile:
	@scripts/needs.sh build lab
	GPUOS_HOSTILE=all $(CARGO) test --locked $(AS_ROOT) -p gpuos_tests --test slurm -- --nocapture --test-threads=1 hostile::

# What a call in slurmctld costs is mostly code that is not in the caches: less of it, and close together.
release: export CARGO_PROFILE_RELEASE_LTO = fat
release: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 1
release:
	@scripts/needs.sh build
	$(CARGO) build --release --locked $(PLUGINS:%=-p %) -p gpuos_cli -p gpuos_layout -p gpuosd -p gpuos_moverd -p libgpuos -p libscr -p gpuos_preload -p pbs_hook

# Needs no cargo, so that `make release` can be one user's and `make install` another's. What is installed is for all, and nobody else's to write,
# whatever the umask of who installs it.
install:
	@umask 022 && $(MAKE) --no-print-directory install-files
install-files:
	@test -x $(RELEASE)/gpuos || { echo 'nothing built yet: run make release first' >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PLUGINDIR) $(DESTDIR)$(DOC) $(DESTDIR)$(MAN) \
	  $(DESTDIR)$(BASH) $(DESTDIR)$(ZSH) $(DESTDIR)$(FISH)
	for program in gpuos gpuos-layout; do \
	  $(STRIPPED) 755 $(RELEASE)/$$program $(DESTDIR)$(PREFIX)/bin/$$program $(DESTDIR)$(DEBUGDIR)$(PREFIX)/bin/$$program.debug || exit 1; \
	done
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(UNITS)
	for daemon in $(DAEMONS); do \
	  $(STRIPPED) 755 $(RELEASE)/$$daemon $(DESTDIR)$(PREFIX)/sbin/$$daemon $(DESTDIR)$(DEBUGDIR)$(PREFIX)/sbin/$$daemon.debug || exit 1; \
	  $(PLACES) packaging/$$daemon.service > $(DESTDIR)$(UNITS)/$$daemon.service || exit 1; \
	done
	for unit in $(DRILL) $(PLANNER); do $(PLACES) packaging/$$unit > $(DESTDIR)$(UNITS)/$$unit || exit 1; done
	for plugin in $(PLUGINS); do \
	  $(STRIPPED) 644 $(RELEASE)/lib$$plugin.so $(DESTDIR)$(PLUGINDIR)/$$plugin.so $(DESTDIR)$(DEBUGDIR)$(PLUGINDIR)/$$plugin.so.debug || exit 1; \
	done
	install -m 644 README.md CHANGELOG.md CONTRIBUTING.md SAFETY.md ARCHITECTURE.md COPYING LICENSES/*.txt $(wildcard SECURITY.md) $(DESTDIR)$(DOC)/
	for sample in packaging/*.sample; do $(PLACES) $$sample > $(DESTDIR)$(DOC)/$$(basename $$sample) || exit 1; done
	install -d $(DESTDIR)$(DOC)/docs
	install -m 644 docs/*.md $(DESTDIR)$(DOC)/docs/
	for folder in docs/*/; do \
	  install -d $(DESTDIR)$(DOC)/$$folder || exit 1; \
	  install -m 644 $$folder* $(DESTDIR)$(DOC)/$$folder || exit 1; \
	done
	@# Called by Grid Engine, LSF and Torque by these paths.
	for manager in gridengine lsf torque; do \
	  install -d $(DESTDIR)$(SHARE)/$$manager || exit 1; \
	  for script in packaging/$$manager/*; do \
	    to=$(DESTDIR)$(SHARE)/$$manager/$${script##*/}; \
	    sed -e 's,/usr/bin/gpuos,$(PREFIX)/bin/gpuos,g' -e 's,/usr/share/gpuos,$(SHARE),g' $$script > $$to && chmod 755 $$to || exit 1; \
	  done; \
	done
	install -d $(DESTDIR)$(SHARE)/grafana $(DESTDIR)$(SHARE)/prometheus
	install -m 644 packaging/grafana/gpuos.json $(DESTDIR)$(SHARE)/grafana/
	install -m 644 packaging/prometheus/gpuos.rules.yml $(DESTDIR)$(SHARE)/prometheus/
	@# For programs of users: checkpoints from C, Fortran, shells and Python, memory from C and Python.
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDE) $(DESTDIR)$(PKGCONF) $(DESTDIR)$(SHARE)/python/gpuos $(DESTDIR)$(SHARE)/examples/checkpoint $(DESTDIR)$(SHARE)/examples/memory
	if [ -e $(RELEASE)/libgpuos.so ]; then \
	  $(STRIPPED) 644 $(RELEASE)/libgpuos.so $(DESTDIR)$(LIBDIR)/libgpuos.so.0 $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos.so.0.debug && \
	  ln -sf libgpuos.so.0 $(DESTDIR)$(LIBDIR)/libgpuos.so || exit 1; \
	else echo 'this build has no libgpuos.so: programs in C cannot be linked with it' >&2; fi
	install -m 644 include/gpuos.h $(DESTDIR)$(INCLUDE)/
	@# In folders of gpuos's own: SCR itself may be installed, too.
	if [ -e $(RELEASE)/libscr.so ]; then \
	  $(STRIPPED) 644 $(RELEASE)/libscr.so $(DESTDIR)$(LIBDIR)/libscr-gpuos.so.0 $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libscr-gpuos.so.0.debug && \
	  ln -sf libscr-gpuos.so.0 $(DESTDIR)$(LIBDIR)/libscr.so || exit 1; \
	else echo 'this build has no libscr.so: programs that use SCR cannot be linked with it' >&2; fi
	if [ -e $(RELEASE)/libgpuos_preload.so ]; then \
	  $(STRIPPED) 644 $(RELEASE)/libgpuos_preload.so $(DESTDIR)$(LIBDIR)/libgpuos_preload.so.0 $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos_preload.so.0.debug || exit 1; \
	else echo 'this build has no libgpuos_preload.so: no program gets more memory than its GPU has' >&2; fi
	@# For PBS: moms load it by this path, which gpuos pbs install is told.
	if [ -e $(RELEASE)/libgpuos_pbs_hook.so ]; then \
	  $(STRIPPED) 644 $(RELEASE)/libgpuos_pbs_hook.so $(DESTDIR)$(LIBDIR)/libgpuos_pbs_hook.so $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos_pbs_hook.so.debug || exit 1; \
	else echo 'this build has no libgpuos_pbs_hook.so: gpuos cannot be used with PBS' >&2; fi
	install -m 644 include/gpuos_pbs.h $(DESTDIR)$(INCLUDE)/
	install -d $(DESTDIR)$(INCLUDE)/gpuos
	install -m 644 include/scr.h $(DESTDIR)$(INCLUDE)/gpuos/
	sed -e 's,@PREFIX@,$(PREFIX),' -e 's,@LIBDIR@,$(LIBDIR),' -e 's,@VERSION@,$(VERSION),' packaging/gpuos.pc.in > $(DESTDIR)$(PKGCONF)/gpuos.pc
	sed -e 's,@PREFIX@,$(PREFIX),' -e 's,@LIBDIR@,$(LIBDIR),' -e 's,@VERSION@,$(VERSION),' packaging/gpuos-scr.pc.in > $(DESTDIR)$(PKGCONF)/gpuos-scr.pc
	install -m 644 include/gpuos.f90 share/gpuos-checkpoint.sh $(DESTDIR)$(SHARE)/
	install -m 644 python/gpuos/*.py $(DESTDIR)$(SHARE)/python/gpuos/
	install -m 644 examples/checkpoint/* $(DESTDIR)$(SHARE)/examples/checkpoint/
	install -m 644 examples/memory/* $(DESTDIR)$(SHARE)/examples/memory/
	$(NATIVE)/gpuos man $(DESTDIR)$(MAN)
	install -d $(DESTDIR)$(MAN8)
	for daemon in $(DAEMONS); do $(NATIVE)/$$daemon --man > $(DESTDIR)$(MAN8)/$$daemon.8 || exit 1; done
	$(NATIVE)/gpuos completion bash > $(DESTDIR)$(BASH)/gpuos
	$(NATIVE)/gpuos completion zsh > $(DESTDIR)$(ZSH)/_gpuos
	$(NATIVE)/gpuos completion fish > $(DESTDIR)$(FISH)/gpuos.fish
	@echo 'Next: docs/admin/install.md, "Describe the cluster". gpuos is installed, Slurm does not use it yet.'

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/gpuos $(DESTDIR)$(PREFIX)/bin/gpuos-layout
	rm -f $(DAEMONS:%=$(DESTDIR)$(PREFIX)/sbin/%) $(DAEMONS:%=$(DESTDIR)$(UNITS)/%.service) $(DAEMONS:%=$(DESTDIR)$(MAN8)/%.8)
	rm -f $(DRILL:%=$(DESTDIR)$(UNITS)/%) $(PLANNER:%=$(DESTDIR)$(UNITS)/%)
	rm -f $(PLUGINS:%=$(DESTDIR)$(PLUGINDIR)/%.so)
	rm -f $(DESTDIR)$(LIBDIR)/libgpuos.so $(DESTDIR)$(LIBDIR)/libgpuos.so.0 $(DESTDIR)$(INCLUDE)/gpuos.h $(DESTDIR)$(PKGCONF)/gpuos.pc
	rm -f $(DESTDIR)$(LIBDIR)/libscr.so $(DESTDIR)$(LIBDIR)/libscr-gpuos.so.0 $(DESTDIR)$(INCLUDE)/gpuos/scr.h $(DESTDIR)$(PKGCONF)/gpuos-scr.pc
	rm -f $(DESTDIR)$(LIBDIR)/libgpuos_pbs_hook.so $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos_pbs_hook.so.debug $(DESTDIR)$(INCLUDE)/gpuos_pbs.h
	rm -f $(DESTDIR)$(LIBDIR)/libgpuos_preload.so.0 $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos_preload.so.0.debug
	rm -f $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libgpuos.so.0.debug $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libscr-gpuos.so.0.debug
	rm -f $(DESTDIR)$(DEBUGDIR)$(PREFIX)/bin/gpuos.debug $(DESTDIR)$(DEBUGDIR)$(PREFIX)/bin/gpuos-layout.debug
	rm -f $(DAEMONS:%=$(DESTDIR)$(DEBUGDIR)$(PREFIX)/sbin/%.debug) $(PLUGINS:%=$(DESTDIR)$(DEBUGDIR)$(PLUGINDIR)/%.so.debug)
	rm -f $(DESTDIR)$(MAN)/gpuos.1 $(DESTDIR)$(MAN)/gpuos-*.1
	rm -f $(DESTDIR)$(BASH)/gpuos $(DESTDIR)$(ZSH)/_gpuos $(DESTDIR)$(FISH)/gpuos.fish
	rm -rf $(DESTDIR)$(DOC) $(DESTDIR)$(SHARE)
	@# Folders that nobody else has put anything into. Those of the system itself stay.
	@for dir in $(PLUGINDIR) $(LIBDIR) $(INCLUDE)/gpuos $(INCLUDE) $(PKGCONF) $(PREFIX)/bin $(PREFIX)/sbin $(UNITS) $(MAN) $(MAN8) $(BASH) $(ZSH) $(FISH) $(DOC:%/gpuos=%) \
	  $(DEBUGDIR)$(PREFIX)/bin $(DEBUGDIR)$(PREFIX)/sbin $(DEBUGDIR)$(PLUGINDIR) $(DEBUGDIR)$(LIBDIR); do \
	  if [ -n "$(DESTDIR)" ]; then part=$(DESTDIR)$$dir; else part=$$dir; fi; \
	  while [ "$$part" != "$(DESTDIR)" ] && [ "$$part" != "$(DESTDIR)/" ]; do \
	    case "$(DESTDIR):$$part" in :/usr|:/usr/local|:/usr/lib|:/usr/lib/pkgconfig|:/usr/include|:/usr/share|:/usr/*bin|:/usr/local/*) break ;; esac; \
	    rmdir "$$part" 2>/dev/null || [ ! -d "$$part" ] || break; \
	    part=$$(dirname "$$part"); [ "$$part" != / ] && [ "$$part" != . ] || break; \
	  done; \
	done

clean:
	$(CARGO) clean
