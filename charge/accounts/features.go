package accounts

import (
	"fmt"

	"github.com/tsugiki/tsugiki/charge/bandwidth"
	"github.com/tsugiki/tsugiki/charge/journal"
	"github.com/tsugiki/tsugiki/charge/shared"
	"github.com/tsugiki/tsugiki/charge/softirq"
	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/internal/programs"
)

// Features lists the kernel features that charging needs, and the effect of each missing one.
func Features() []kernel.Feature {
	return []kernel.Feature{
		{Name: "cpu controller", Lost: "CPU time is not charged", Probe: probeController},
		{
			Name: journal.Program, Lost: "CPU time is not charged",
			Probe: func(*kernel.Scratch) (string, error) { return programs.Find(journal.Program) },
		},
		{
			Name: "division of shared daemons", Lost: "CPU time of daemons that work for many containers is not charged",
			Probe: func(*kernel.Scratch) (string, error) {
				m, err := shared.New()
				if err != nil {
					return "", err
				}
				return "", m.Close()
			},
		},
		{
			Name: "metering of softirqs", Lost: "CPU time of receiving packets is not charged",
			Probe: func(*kernel.Scratch) (string, error) {
				m, err := softirq.New()
				if err != nil {
					return "", err
				}
				return "", m.Close()
			},
		},
	}
}

func probeController(*kernel.Scratch) (string, error) {
	root, err := bandwidth.Open("/")
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%s, %s", root.Version(), root.Path())
	if root.Version() == "v2" {
		detail += "; helpers are charged by quota, except where a cgroup with a quota has its processes in cgroups below it"
	}
	return detail, root.Close()
}
