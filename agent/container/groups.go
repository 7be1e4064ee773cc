package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/netns"
)

func (c *Container) makeGroups() error {
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	if c.group, err = makeGroup(own, c.groupName()); err != nil {
		return err
	}
	c.keepers, err = cgroup.Create(c.group.Path(), keepersGroup)
	return err
}

// makePrograms makes a cgroup for the container's programs, if nobody else has put them in one.
func (c *Container) makePrograms() (err error) {
	if !c.spec.Programs {
		return nil
	}
	c.programs, err = cgroup.Create(c.group.Path(), programsGroup)
	return err
}

func (c *Container) groupName() string { return "tsugiki-" + c.spec.Name + c.spec.Mark }

// makeGroup makes a cgroup. An empty cgroup of that name was left by a killed process with another
// run directory.
func makeGroup(parent, name string) (*cgroup.Group, error) {
	g, err := cgroup.Create(parent, name)
	if errors.Is(err, fs.ErrExist) && cgroup.At(parent+"/"+name).RemoveIfEmpty() == nil {
		return cgroup.Create(parent, name)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w; a container of that name runs with another --run-dir, choose another --name", err)
	}
	return g, err
}

// ProgramsGroup returns the directory of the cgroup of the container's programs; empty if others
// have put them elsewhere.
func (c *Container) ProgramsGroup() string {
	if c.programs == nil {
		return ""
	}
	return c.programs.Path()
}

// OpenOwn returns the cgroup of the container's programs, opened, and the container's own
// namespace, to start a program in them.
func (c *Container) OpenOwn() (programs *os.File, own *netns.NS, err error) {
	programs, err = c.programs.Open()
	return programs, c.ownNS, err
}

// SocketsGroup returns the directory of the cgroup in which the host sockets are made.
func (c *Container) SocketsGroup() string { return c.keepers.Path() }
