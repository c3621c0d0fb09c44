# make build    the release binary, target/release/millrace
# make demo     a private cluster, Millrace before it, and a workload to watch
# make test     everything CI runs
# make check    the fast part of it
# make figures  CPU, latency, memory and connections beside HAProxy and a bare relay

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# What `make demo` shows; for example DEMO='--family mariadb --clients 500'.
DEMO ?= --for 15 --stay

.PHONY: build demo test check figures
.NOTPARALLEL:

build:
	@echo "make: building the release binary"
	$(CARGO) build --release

# Without MySQL (status 3) the demo runs on MariaDB.
demo:
	@echo "make: installing the servers the demo runs on (nothing when they are there)"
	@scripts/install-deps.sh servers || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory build
	@echo "make: starting the demo; it removes everything it made, also on Ctrl-C"
	$(TARGET)/release/millrace demo $(DEMO)

test:
	@scripts/ci-steps.sh test

check:
	@scripts/ci-steps.sh check

figures:
	@scripts/install-deps.sh bench || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory build
	@bench/figures.sh $(FIGURES)
