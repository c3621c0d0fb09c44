# make build    the release binary, target/release/millrace
# make release  the same as it is shipped, compiled for what it does under load: target/dist/millrace.
#               Some fifteen minutes; make release PLAIN=1 leaves the training out
# make demo     a private cluster, Millrace before it, and a workload to watch
# make demo-failover   the primary is killed under load: what Millrace sees, what clients notice
# make demo-cache      the same load with the cache off and on: what it saves, and that nothing is stale
# make test     everything CI runs
# make check    the fast part of it
# make long     what make test has a minute for, for ten minutes on each family: every read's promise,
#               while replicas are delayed, stopped, killed, paused and promoted; and ten million
#               steps of failover in simulation; and the torture test for an hour (TORTURE_MINUTES=…)
#               and, on MariaDB 11.8, the whole of the suites of which make test runs a selection
# make foreign  the test suites of drivers that others wrote, whole, on both families, each directly and
#               through Millrace: make foreign FAMILY=mariadb SUITES='mysql_async go-sql-driver'
# make bench    the experiments, beside direct connections and other proxies:
#               make bench QUICK=1; make bench EXPERIMENT=W2,U1 ROUNDS=5 SECONDS=5.
#               It measures what make release makes
# make faults   every fault of servers under load, on every topology, with a report of what clients
#               saw: some twenty minutes; make faults FAULTS=galera (mysql, mariadb, group_replication)

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# What `make demo` shows; for example DEMO='--family mariadb --clients 500'.
DEMO ?= --for 15 --stay

.PHONY: build release demo demo-failover demo-cache test check long foreign bench faults broken-rules
.NOTPARALLEL:

build:
	@echo "make: building the release binary"
	$(CARGO) build --release --locked --bin millrace

release:
	@CARGO='$(CARGO)' scripts/build-release.sh $(if $(PLAIN),--plain)

# Without MySQL (status 3) the demo runs on MariaDB.
demo:
	@echo "make: installing the servers the demo runs on (nothing when they are there), and building Millrace and its"
	@echo "make: lab beside it: soon there, and hardly optimised, so that figures are those of a release only in kind"
	@scripts/install-deps.sh servers & deps=$$!; \
		$(CARGO) build --profile demo --locked -p millrace -p millrace-lab || exit; \
		wait $$deps || [ $$? -eq 3 ]
	@echo "make: starting the demo; it removes everything it made, also on Ctrl-C"
	$(TARGET)/demo/millrace-lab demo $(DEMO)

demo-failover:
	@$(MAKE) --no-print-directory demo DEMO='--failover $(DEMO_FAILOVER)'

demo-cache:
	@$(MAKE) --no-print-directory demo DEMO='--cached $(DEMO_CACHE)'

test:
	@scripts/ci-steps.sh test

check:
	@scripts/ci-steps.sh check

# MINUTES=… for another time, MILLRACE_CONSISTENCY_SEED=… for other faults.
long: build
	@scripts/install-deps.sh test || [ $$? -eq 3 ]
	MILLRACE_SIMULATION_STEPS=10000000 \
		$(CARGO) test --locked --package millrace-session --lib simulation -- --nocapture
	MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' \
		MILLRACE_CONSISTENCY_SECONDS=$$(( $(or $(MINUTES),10) * 60 )) \
		$(CARGO) test --locked --package millrace-tests --test consistency -- --nocapture --test-threads 1
	MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' \
		MILLRACE_TORTURE_SECONDS=$$(( $(or $(TORTURE_MINUTES),60) * 30 )) \
		$(CARGO) test --locked --package millrace-tests --test torture -- --nocapture --test-threads 1
	MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' MILLRACE_WHOLE=1 \
		$(CARGO) test --locked --package millrace-tests --test auth --test serving --test differential \
		--test failover -- --nocapture --test-threads 1 mariadb_11_8
	MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' MILLRACE_WHOLE=1 \
		$(CARGO) test --locked --package millrace-tests --test vanishing -- --nocapture --test-threads 1

# What the suites must notice: FAMILY=mariadb for the other family.
broken-rules:
	@scripts/install-deps.sh servers || [ $$? -eq 3 ]
	scripts/broken-rules.sh $(or $(FAMILY),mysql)

foreign: build
	@scripts/install-deps.sh servers || [ $$? -eq 3 ]
	$(CARGO) build --locked --bin millrace-lab
	@MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' tests/foreign/run.sh \
		$(if $(FAMILY),--family '$(FAMILY)') $(SUITES)

# Also POINTS=…, ONLY=… (systems), FAMILY=…, OUT=…, RESUME=…: see bench/bench.py --help.
bench:
	@scripts/install-deps.sh bench || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory release
	$(CARGO) build --release --locked -p millrace-bench -p millrace-lab
	@python3 bench/bench.py --target $(TARGET) $(if $(QUICK),--quick) \
		$(if $(EXPERIMENT),--experiment '$(EXPERIMENT)') $(if $(POINTS),--points '$(POINTS)') \
		$(if $(ROUNDS),--rounds '$(ROUNDS)') $(if $(SECONDS),--seconds '$(SECONDS)') \
		$(if $(ONLY),--only '$(ONLY)') $(if $(FAMILY),--family '$(FAMILY)') $(if $(OUT),--out '$(OUT)') \
		$(if $(RESUME),--resume '$(RESUME)')

# The report is in target/faults, in Markdown and JSON. ONLY=word runs the faults whose name has it.
faults:
	@scripts/install-deps.sh faults || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory build
	MILLRACE_FAULTS=all MILLRACE_FAULTS_OUT='$(abspath $(TARGET))/faults' \
		MILLRACE_BIN='$(abspath $(TARGET))/release/millrace' $(if $(ONLY),MILLRACE_TESTS_ONLY='$(ONLY)') \
		$(CARGO) test --locked --package millrace-tests --test faults -- --nocapture --test-threads 1 $(FAULTS)
