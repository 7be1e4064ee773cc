package daemon

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// checkNetwork refuses a pod that has a network and whose IPv4 is to be translated. The runtime has
// looked into the pod's network namespace.
func checkNetwork(r *api.Registration, given *rules.Rules) error {
	if given.Translation == nil || r.LoopbackOnly {
		return nil
	}
	return fmt.Errorf("%w: IPv4 is translated in pods that have no network but a loopback, and this one has another; give the pod the RuntimeClass of such pods (runtimeClassName: tsugiki-translate), and their network to its runtime in containerd's configuration (cni_conf_dir)",
		rules.ErrNotAllowed)
}

// restartTranslate is what a container is told to need a new one for, if IPv4 is to be translated
// otherwise than it is.
const restartTranslate = "translate"

// losesResolvers tells whether a container has resolvers that it is not given any more.
func losesResolvers(had *api.Translate, want api.Rules) bool {
	if had == nil {
		return false
	}
	wanted, err := rules.Parse(want)
	if err != nil || wanted.Translation == nil {
		return true
	}
	return haveResolvers(wanted.Translation) == nil && !slices.Equal(had.DNS, wanted.Texts().Translate.DNS)
}

// retranslates tells whether IPv4 of a container is to be translated otherwise than it was when the
// container was registered. What is to be translated no more loses its rules and resolvers, and needs nothing else.
func retranslates(had *api.Translate, want api.Rules) bool {
	wanted, err := rules.Parse(want)
	if err != nil || wanted.Translation == nil {
		return false
	}
	if had == nil {
		return true
	}
	err = haveResolvers(wanted.Translation)
	now := wanted.Texts().Translate
	if err != nil {
		now.DNS = had.DNS // those of the agent cannot be read now
	}
	return !reflect.DeepEqual(had, now)
}
