// What the report's charts need of Apache ECharts; nothing else is bundled.
import { CustomChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent,
  DataZoomInsideComponent,
  GridComponent,
  LegendComponent,
  MarkLineComponent,
  TitleComponent,
  TooltipComponent,
  VisualMapContinuousComponent,
} from "echarts/components";
import { use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([CustomChart, HeatmapChart, LineChart, ScatterChart]);
use([AriaComponent, DataZoomInsideComponent, GridComponent, LegendComponent, MarkLineComponent, TitleComponent]);
use([TooltipComponent, VisualMapContinuousComponent, CanvasRenderer]);

export { connect, graphic, init, use } from "echarts/core";
