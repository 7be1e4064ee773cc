# make demo   shows what it is for; make test   runs all tests. Both install
# what they need first (scripts/deps.sh). The rest is for working on it.

export PATH := $(CURDIR)/.cache/go/bin:$(PATH)
export CGO_ENABLED := 0
SHELL := /bin/bash -o pipefail

GO       ?= go
BIN      ?= bin
PREFIX   ?= /usr/local
VERSION  ?= 0.1
ZSH      ?= site-functions
ROUNDS   ?= 7
CONTAINERS ?= 300
FUZZTIME ?= 10s
LINT     := $(GO) tool -modfile=tools/go.mod golangci-lint
C_FILES   = $(shell git ls-files '*.c' '*.h')

all: build

deps: ; scripts/deps.sh
deps-demo: ; scripts/deps.sh demo
deps-engines: ; scripts/deps.sh engines
# Builds Kubernetes, the first time 19 minutes: into .cache/kube, which tests of kube/ look for.
deps-kube:
	scripts/deps.sh kube
	scripts/kube.sh
# Of that, what bench-kube takes: 8 minutes.
deps-bench-kube:
	scripts/deps.sh kube
	scripts/kube.sh kube-apiserver kwok
deps-bench-agent: ; scripts/deps.sh bench-agent
deps-bench-charge: ; scripts/deps.sh bench-charge
deps-bench-forward: ; scripts/deps.sh bench-forward
deps-bench-offload: ; scripts/deps.sh bench-offload
deps-bench-peers: ; scripts/deps.sh bench-peers
deps-bench-translate: ; scripts/deps.sh bench-translate
deps-bench-vm: ; scripts/deps.sh bench-vm

# What tsugiki --version says.
STAMP = -ldflags "-X github.com/tsugiki/tsugiki/internal/programs.version=$(shell packaging/version.sh $(VERSION))"

build:
	$(GO) build -trimpath $(STAMP) -o bin/ ./cmd/... ./internal/launch/tsugiki-launch
	$(MAKE) -f native/Makefile

# What runs in a cluster: a module of its own, as nothing else is to link Kubernetes' client.
kube:
	$(GO) -C kube build -trimpath -o ../bin/kube/ ./cmd/...

# The image of deploy/, with all programs of a node, as an OCI archive in dist/.
IMAGE ?= tsugiki-kube:$(VERSION)
image: build kube
	packaging/image.sh $(BIN) dist $(IMAGE)

# The pages of the built commands.
man:
	rm -rf man
	$(BIN)/tsugiki manpages man

# What users name is what cmd/ has, and the logging driver; the rest is called by those.
COMMANDS = $(addprefix $(BIN)/,$(notdir $(wildcard cmd/*)) tsugiki-log)
HELPERS  = $(filter-out $(COMMANDS),$(wildcard $(BIN)/tsugiki-*))

# The agent's, and those of nodes with a DPU, which start where they are configured.
UNITS = $(wildcard packaging/systemd/*.service)

# After make build: the binaries with their pages and completions, the daemons'
# units and the agent's configuration, unless there is one, the documents, and what programs
# written for AF_GRAFT are built with.
install: install-programs
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/tsugiki include/tsugiki/graft.h
	install -d $(DESTDIR)$(PREFIX)/share/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' tsugiki-graft.pc.in \
		> $(DESTDIR)$(PREFIX)/share/pkgconfig/tsugiki-graft.pc
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system $(UNITS)
	sed -i 's|/usr/bin/|$(PREFIX)/bin/|' $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(notdir $(UNITS)))
	for f in hooks/tsugiki scripts/init-premount/tsugiki; do set -e; \
		install -D packaging/initramfs/$$f $(DESTDIR)$(PREFIX)/share/initramfs-tools/$$f && \
		sed -i 's|/usr/bin/|$(PREFIX)/bin/|' $(DESTDIR)$(PREFIX)/share/initramfs-tools/$$f; done
	[ -e $(DESTDIR)/etc/tsugiki/agent.toml ] || install -D -m 644 -t $(DESTDIR)/etc/tsugiki packaging/agent.toml
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/tsugiki/docs $(wildcard docs/*.md)
	install -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/tsugiki README.md CHANGELOG.md SECURITY.md
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/tsugiki/examples $(wildcard examples/*)
	$(BIN)/tsugiki manpages $(DESTDIR)$(PREFIX)/share/man
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/$(ZSH) fish/vendor_completions.d)
	$(BIN)/tsugiki completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tsugiki
	$(BIN)/tsugiki completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/$(ZSH)/_tsugiki
	$(BIN)/tsugiki completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tsugiki.fish

# Of that, what the image of tsugiki-kube has, too.
install-programs:
	install -D -t $(DESTDIR)$(PREFIX)/bin $(COMMANDS)
	install -D -t $(DESTDIR)$(PREFIX)/lib/tsugiki $(HELPERS) $(BIN)/libtsugiki.so
	cp -a $(BIN)/preload $(DESTDIR)$(PREFIX)/lib/tsugiki/

# Takes away what install has put there. /etc/tsugiki and the state of the agent stay.
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(notdir $(COMMANDS)))
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/tsugiki.1 $(DESTDIR)$(PREFIX)/share/man/man1/tsugiki-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/man/man5/tsugiki-agent.toml.5
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(notdir $(UNITS)))
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/initramfs-tools/,hooks/tsugiki scripts/init-premount/tsugiki)
	rm -f $(DESTDIR)$(PREFIX)/share/pkgconfig/tsugiki-graft.pc
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions/tsugiki zsh/$(ZSH)/_tsugiki fish/vendor_completions.d/tsugiki.fish)
	rm -rf $(addprefix $(DESTDIR)$(PREFIX)/,lib/tsugiki include/tsugiki share/doc/tsugiki)

# A Debian package in dist/; all packages: that, an .rpm and a .tar.gz.
deb: build
	packaging/deb/build.sh $(BIN) dist $(VERSION)
packages: build
	packaging/build.sh $(BIN) dist $(VERSION)

generate:
	$(GO) generate ./...
	$(GO) -C kube generate ./...

lint:
	$(LINT) run --allow-serial-runners ./... # two of these may run on one machine
	cd kube && $(GO) tool -modfile=../tools/go.mod golangci-lint run --allow-serial-runners ./...
	clang-format --dry-run -Werror $(C_FILES)
	scripts/check-generated.sh
	GOARCH=arm64 $(GO) vet ./...

# Tests wait half of their time, and linters do not.
test: deps build
	$(MAKE) -j2 lint tests

# The second line has a cluster where the cache has Kubernetes' programs (make deps-kube).
tests: build sanitized kube
	scripts/tests.sh -timeout 20m
	TSUGIKI_SHOW=TestCluster TSUGIKI_MODULE=kube scripts/tests.sh -timeout 30m

# The density study once, with as many containers as it has: the tests have a few.
test-density: deps build
	rm -rf density-test && $(BIN)/tsugiki density run --rounds 1 -o density-test

# The density study at its full size, into docs/density: all four files of the report. It takes
# about 90 minutes on two cores, which should do nothing else. DENSITY=--resume continues one
# that was interrupted.
DENSITY ?= --force
density-report: deps build
	$(BIN)/tsugiki density run $(DENSITY) -o docs/density

# On other kernels and with cgroups mounted in other ways, in a virtual machine.
# KERNELS="5.10 6.1 6.12" MODES="v2 v1 hybrid" PACKAGES="charge/journal policy/enforcer"
test-kernels: deps build sanitized
	scripts/kernels/test.sh

# All tests that start a container engine, with newer engines than the distribution's: those of
# tools/*/go.mod, which are built first. The first time this takes 10 minutes more.
test-engines: deps-engines build
	scripts/engines.sh

# A real cluster of one node: Kubernetes' own programs, and containerd.
test-kube: deps-kube build kube
	$(GO) -C kube generate ./... && git diff --exit-code --stat -- kube deploy/crds
	TSUGIKI_SHOW=TestCluster TSUGIKI_MODULE=kube scripts/tests.sh -timeout 30m

# All tests with long loops: 100,000 connections through one container, a hundred kills, ten
# minutes of random calls under random rules.
soak: export TSUGIKI_SOAK = 1
soak: deps build sanitized
	scripts/tests.sh -timeout 90m

# For the conformance suite: with sanitizers in the C parts.
SANITIZED = $(CURDIR)/bin/sanitized
sanitized: build
	$(MAKE) -f native/Makefile OUT=$(SANITIZED) SANITIZED=$(SANITIZED)/findings
	cp bin/tsugiki bin/tsugiki-launch $(SANITIZED)/

# How much of tsugiki and tsugiki-runtime the end-to-end tests run: a line per package. What
# processes run that are killed is not counted. COVER_RUN='TestAgent|TestCharge' chooses tests.
# Engines do not pass the environment on to the runtime, so tsugiki-runtime is a script here, of which
# no package is made.
COVERED = $(CURDIR)/bin/covered
COVER_RUN ?= .
cover-binaries: deps build
	rm -rf $(COVERED)
	install -d $(COVERED)/oci
	install -d -m 777 $(COVERED)/counters # programs of any user write there
	cp -a $(HELPERS) $(BIN)/tsugiki-log $(BIN)/tsugiki-cni $(BIN)/libtsugiki.so $(BIN)/preload $(COVERED)/
	$(GO) build -cover -coverpkg=./... -trimpath -o $(COVERED)/ ./cmd/tsugiki
	$(GO) build -cover -coverpkg=./... -trimpath -o $(COVERED)/oci/ ./cmd/tsugiki-runtime
	printf '#!/bin/sh\nGOCOVERDIR=%s exec %s "$$@"\n' $(COVERED)/counters $(COVERED)/oci/tsugiki-runtime \
		> $(COVERED)/tsugiki-runtime
	chmod +x $(COVERED)/tsugiki-runtime
	GOCOVERDIR=$(COVERED)/counters TSUGIKI_BIN=$(COVERED) $(GO) test -count=1 -vet=off -timeout 60m \
		-run '$(COVER_RUN)' -skip '^(TestWalk|TestPackages|TestDebianPackage)$$' ./test/e2e; status=$$?; \
		$(GO) tool covdata percent -i $(COVERED)/counters && exit $$status

fuzz:
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep ^Fuzz); do \
		echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; done; done
	$(GO) -C kube test -run '^$$' -fuzz '^FuzzCreateContainer$$' -fuzztime $(FUZZTIME) ./nri
	$(MAKE) -f native/Makefile fuzz

# With a BPF file system, which not every machine has mounted.
bench: deps-demo build
	unshare -m sh -ec 'mount -t bpf bpf /sys/fs/bpf; exec "$$@"' sh $(GO) run ./bench -figure graft -rounds $(ROUNDS) -o bench.json

# The same in both directions beside Docker, pasta, slirp4netns and bypass4netns.
bench-peers: deps-bench-peers build
	CGO_ENABLED=1 $(GO) build -modfile=tools/bypass4netns/go.mod -trimpath -o .cache/peers/ github.com/rootless-containers/bypass4netns/cmd/bypass4netns
	PATH=$(CURDIR)/.cache/peers:$$PATH unshare -m sh -ec 'mount -t bpf bpf /sys/fs/bpf; exec "$$@"' sh $(GO) run ./bench \
		-modes host,nat,auto,docker-host,docker-bridge,docker-graft,pasta,slirp4netns,bypass4netns \
		-tests tcp_stream,tcp_rr,tcp_crr,in_tcp_stream,in_tcp_rr,in_tcp_crr -rounds $(ROUNDS) -o bench-peers.json

# Programs that know IPv4 only, on a host without IPv4: translated, beside IPv6, IPv4, tayga, haproxy
# and socat; and the DNS proxy beside its resolver.
bench-translate: deps-bench-translate build
	unshare -m sh -ec 'mount -t bpf bpf /sys/fs/bpf; exec "$$@"' sh $(GO) run ./bench -figure translate -rounds $(ROUNDS) \
		-o bench-translate.json

# What many containers cost: start and stop, memory, connections, a new agent.
bench-agent: deps-bench-agent build
	$(GO) run ./bench/agent -n $(CONTAINERS) -o bench-agent.json

# What becomes of CPU time that others spend for containers: the paper's tables.
bench-charge: deps-bench-charge build
	$(GO) run ./bench/charge -o bench-charge.json

# Round trips between two pods of a node: bridge, Open vSwitch, and directly.
bench-forward: deps-bench-forward
	$(GO) run ./bench/forward -o bench-forward.json

# Pods whose switch is on an emulated DPU, beside pods whose switch is on the host.
OFFLOAD = unshare -m sh -ec 'mount -t bpf bpf /sys/fs/bpf; exec "$$@"' sh $(GO) run ./bench/offload
demo-offload: deps-bench-offload build
	$(OFFLOAD) -figure latency -o demo-offload.json

# What 500 pods cost the controller and the switch (a replay, a change of the policy), and how long
# packets wait when the switch is killed and started again.
bench-offload: deps-bench-offload build
	$(OFFLOAD) -figure control -o bench-offload.json
	$(OFFLOAD) -figure restart -o bench-offload-restart.json

# What many nodes cost the API server of a cluster: 1,000 nodes with real controllers, kwok's pods, and
# agents in memory. NODES=5000 PODS=50000 wants more memory than 24 GB. Then one node with many pods and
# a real agent.
NODES ?= 1000
PODS  ?= 10000
BENCH_KUBE = $(GO) -C kube run ./bench -endpoints 1000
bench-kube: deps-bench-kube build
	$(BENCH_KUBE) -nodes $(NODES) -pods $(PODS) -o $(CURDIR)/bench-kube.json
	$(BENCH_KUBE) -nodes 1 -pods 300 -namespaces 1 -agent $(CURDIR)/$(BIN)/tsugiki -o $(CURDIR)/bench-kube-node.json

# Of 1,000 nodes, what the API server's death for 10 s costs, and a start of all at once; at most 25 minutes.
bench-kube-faults: deps-bench-kube build
	$(BENCH_KUBE) -only faults -limit 6m -down 10s -nodes $(NODES) -pods $(PODS) -o $(CURDIR)/bench-kube-faults.json

# Ways of programs in virtual machines, in User-Mode Linux and in QEMU: the host's sockets, TAP, libslirp,
# and a proxy on the host and in the guest. demo-vm prints the medians, bench-vm all figures.
VM = $(GO) run ./bench/vm -accelerators uml,tcg -kernel "$$(scripts/kernels/fetch.sh 6.1)" -rounds $(ROUNDS)
demo-vm: deps-bench-vm build
	$(VM) -o demo-vm.json
bench-vm: deps-bench-vm build
	$(VM) -full -o bench-vm.json

demo: deps-demo build
	$(GO) run ./bench/demo

# Programs that know IPv4 only, on a host without IPv4: what they see, and what is on its links.
demo-translate: deps-bench-translate build
	unshare -m sh -ec 'mount -t bpf bpf /sys/fs/bpf; exec "$$@"' sh $(GO) run ./bench/demo/translate

clean:
	rm -rf bin dist man .cache bench.json bench-agent.json bench-charge* bench-forward.json bench-kube*.json bench-offload*.json demo-offload.json bench-peers.json bench-translate.json bench-vm.json demo-vm.json density-test

.PHONY: all image install-programs deps deps-demo deps-engines deps-bench-offload deps-kube deps-bench-kube kube test-kube deps-bench-agent deps-bench-charge deps-bench-peers deps-bench-translate deps-bench-vm build man install uninstall deb packages generate lint test tests sanitized test-density density-report test-engines test-kernels cover-binaries soak fuzz bench bench-agent bench-charge bench-forward bench-kube bench-kube-faults bench-offload demo-offload bench-peers bench-translate bench-vm demo demo-translate demo-vm clean
