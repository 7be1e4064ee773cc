package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// # Translation over a restart of the agent
//
// A container that outlives us has its virtual addresses in a file, beside the adoption sockets of
// its gates. The kernel keeps what else is needed: the rows of hosts, which port of the host is the
// DNS proxy's, and where UDP servers are published. The next agent makes the rest anew: the proxy's
// sockets, and the programs at the host's links. Meanwhile no name is answered, and no datagram
// leaves for a virtual address, because the proxy's socket is not there.

// tableFile returns the path of the file that keeps the virtual addresses; empty if the container
// ends with us.
func (c *Container) tableFile() string {
	if !c.spec.Outlives {
		return ""
	}
	return filepath.Join(adoptSocketsOf(c.spec.RunDir, c.spec.Name), "addresses")
}

// forgetAddresses removes the file of an earlier container of this name, or of an earlier start of
// this one: no program knows its addresses.
func (c *Container) forgetAddresses() error {
	if c.spec.Translation == nil || !c.spec.Outlives {
		return nil
	}
	if err := os.Remove(c.tableFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget virtual addresses: %w", err)
	}
	return nil
}

// checkAlone returns an error if containers would share a loopback, and one of them translates
// IPv4. The kernel programs tell the datagrams of a loopback apart from others, and not whose they
// are of its containers: one would send to the hosts of the other, whatever its own rules are.
func (c *Container) checkAlone() error {
	own := c.ownNS.Cookie()
	if !enforcer.LoopbackOnHost(own) || c.spec.Translation == nil && !enforcer.ServesNames(own) {
		return nil
	}
	return errors.New("containers in one network namespace cannot have IPv4 translated; give the container a namespace of its own")
}
