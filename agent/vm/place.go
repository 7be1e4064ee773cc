package vm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/outsource/stream"
)

// kind is how a VMM gives the host the vsock connections of its guest.
type kind int

const (
	device  kind = iota // vhost-user, at a socket that the host makes
	hybrid              // unix sockets, beside one that the VMM makes
	context             // AF_VSOCK, by the guest's context id
)

const (
	hybridPrefix = "hybrid:"
	// cidDefault is the context id of guests whose VMM asks the device for it.
	cidDefault = 3
	// pathMax is the longest path of a unix socket, in bytes (unix(7)), with room for the port that hybrid
	// vsock puts behind it.
	pathMax = 107 - len("_1543503872")
)

// Place is where the vsock connections of a guest are.
type Place struct {
	kind kind
	path string // of a unix socket
	cid  uint64
}

// ErrPlace says that a text is no place.
var ErrPlace = errors.New("no place of a guest's vsock")

// Parse reads a place: PATH of a socket to which a VMM's vhost-user-vsock device connects, hybrid:PATH of
// the socket of a VMM with hybrid vsock, or a context id of AF_VSOCK. cid is for a vhost-user device, to
// which the host says the guest's context id; 0 stands for 3.
func Parse(text string, cid uint64) (Place, error) {
	p := Place{path: text, cid: cid}
	if number, err := strconv.ParseUint(text, 10, 64); err == nil {
		p = Place{kind: context, cid: number}
	} else if path, is := strings.CutPrefix(text, hybridPrefix); is {
		p = Place{kind: hybrid, path: path}
	} else if cid == 0 {
		p.cid = cidDefault
	}
	switch {
	case text == "", text == hybridPrefix:
		return p, fmt.Errorf("%w: write PATH, hybrid:PATH or a context id", ErrPlace)
	case p.kind != device && cid != 0:
		return p, fmt.Errorf("%w: only a vhost-user device is told a context id; leave %d out", ErrPlace, cid)
	case p.kind != hybrid && (p.cid <= unix.VMADDR_CID_HOST || p.cid >= 1<<32-1):
		return p, fmt.Errorf("%w: context id %d: 0, 1 and 2 are taken; use 3 or more", ErrPlace, p.cid)
	case len(p.path) > pathMax:
		return p, fmt.Errorf("%w: path %s is longer than %d bytes", ErrPlace, p.path, pathMax)
	}
	return p, nil
}

// Path is the path of the place's unix socket; empty for a context id.
func (p Place) Path() string { return p.path }

// Check says why no machine can be attached at the place now, as far as that is known beforehand.
func (p Place) Check() error {
	if p.path == "" {
		return nil
	}
	if _, _, err := stream.Owner(p.path); err != nil {
		return attachError(p, err)
	}
	return nil
}

func attachError(p Place, err error) error {
	return fmt.Errorf("attach a virtual machine at %s: %w", p, err)
}

// String is the text of which Parse makes the place, without the context id of a device.
func (p Place) String() string {
	switch p.kind {
	case hybrid:
		return hybridPrefix + p.path
	case context:
		return strconv.FormatUint(p.cid, 10)
	}
	return p.path
}
