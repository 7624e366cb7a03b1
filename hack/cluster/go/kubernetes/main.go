// One program that holds every Kubernetes component of the cluster tool. Linking them once instead
// of six times saves minutes and half a gigabyte. The name under which it is called (a symbolic
// link) chooses the component.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJob time zones on a machine without a zone database

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func component(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	}
	return nil
}

func kubectl() {
	// An unknown flag or a bad verbosity is reported by the command itself later.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kubectl" {
		kubectl()
		return
	}
	command := component(name)
	if command == nil {
		fmt.Fprintf(os.Stderr, "call this program by a link named after a Kubernetes component, not as %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
