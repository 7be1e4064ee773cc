all: build

build:
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...
	$(MAKE) -C native

.PHONY: all build
